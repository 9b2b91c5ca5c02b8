"""Records and checkpoints for good, on SQLite or PostgreSQL."""

from service.storage.checkpoints import SqlCheckpointStore
from service.storage.database import open_database
from service.storage.errors import MarketTaken, SchemaMismatch
from service.storage.migrate import check_schema, migrate
from service.storage.records import SqlRecordStore

__all__ = [
    "MarketTaken",
    "SchemaMismatch",
    "SqlCheckpointStore",
    "SqlRecordStore",
    "check_schema",
    "migrate",
    "open_database",
]
