"""Databases for storage tests: each test has its own, already migrated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.storage import migrate
from tests.support.blocking import run_blocking
from tests.support.postgres import PostgresCluster, postgres_cluster

__all__ = ["postgres_cluster"]


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the schema and no rows."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    run_blocking(migrate(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_url(migrated_file: Path, tmp_path: Path) -> str:
    """The URL of a migrated SQLite database of this test's own."""
    path = tmp_path / "my data é" / "livewick.db"
    path.parent.mkdir()
    shutil.copy(migrated_file, path)
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database of this test's own."""
    with postgres_cluster.database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database: the test runs on both kinds."""
    chosen: str = request.getfixturevalue(f"{request.param}_url")
    return chosen
