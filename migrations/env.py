"""Where Alembic starts: runs migrations on the connection that ``service.storage.migrate`` hands over.

The ``alembic`` command itself works too (``alembic -x url=sqlite+aiosqlite:///data/livewick.db current``), through the
same locks.
"""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection

from service.storage.migrate import migration_connection
from service.storage.tables import metadata


def run(connection: Connection) -> None:
    """Run what Alembic was asked for inside the caller's transaction, all revisions or none."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=False,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    context.run_migrations()


async def run_alone(url: str) -> None:
    """Open a locked connection of our own; for the ``alembic`` command."""
    async with migration_connection(url) as connection:
        await connection.run_sync(run)


handed_over = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    url = context.get_x_argument(as_dictionary=True).get("url")
    if not url:
        raise SystemExit("alembic needs -x url=DATABASE_URL here; `livewick migrate` takes it from the settings")
    asyncio.run(run_alone(url))
