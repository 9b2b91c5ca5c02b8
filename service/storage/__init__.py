"""Records and checkpoints for good, on SQLite or PostgreSQL."""

from service.storage.checkpoints import SqlCheckpointStore
from service.storage.database import Database, open_database
from service.storage.errors import DatabaseDamaged, MarketTaken, SchemaMismatch
from service.storage.export import export
from service.storage.integrity import check_integrity
from service.storage.lease import market_lease
from service.storage.migrate import check_schema, migrate
from service.storage.records import SqlRecordStore

__all__ = [
    "Database",
    "DatabaseDamaged",
    "MarketTaken",
    "SchemaMismatch",
    "SqlCheckpointStore",
    "SqlRecordStore",
    "check_integrity",
    "check_schema",
    "export",
    "market_lease",
    "migrate",
    "open_database",
]
