"""A real PostgreSQL for tests of the whole service."""

from tests.support.postgres import postgres_cluster

__all__ = ["postgres_cluster"]
