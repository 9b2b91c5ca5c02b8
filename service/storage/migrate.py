"""Bring a database's schema to a revision, one process at a time, and check that it fits this program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import AsyncFileLock, Timeout
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.ports import StoreUnavailable
from service.storage.address import Address, parse_url
from service.storage.database import LASTING, Database, open_database, open_engine
from service.storage.errors import SchemaMismatch, expected_trouble, wrong_settings

# Beside the package in the source tree and in an installed wheel alike.
MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
WAIT_SECONDS = 60.0
LOCK_KEY = 0x4C_49_56_45_57_49_43_4B  # "LIVEWICK" as bytes
LOCK_NOT_AVAILABLE = "55P03"


async def migrate(url: str) -> None:
    """Bring the database to the newest schema; safe to call in several processes at once.

    Raises ConfigurationError where the database refuses the user, the password or its own name.
    """
    with wrong_settings():
        await upgrade(url)


async def upgrade(url: str, revision: str = "head", wait_seconds: float = WAIT_SECONDS) -> None:
    """Upgrade to ``revision``, all or nothing; waits at most ``wait_seconds`` for another process that does."""
    async with migration_connection(url, wait_seconds) as connection:
        await connection.run_sync(refuse_newer)
        await connection.run_sync(lambda sync: command.upgrade(config(sync), revision))


async def downgrade(url: str, revision: str, wait_seconds: float = WAIT_SECONDS) -> None:
    """Go back to ``revision`` (``base``: nothing left)."""
    async with migration_connection(url, wait_seconds) as connection:
        await connection.run_sync(refuse_newer)
        await connection.run_sync(lambda sync: command.downgrade(config(sync), revision))


async def check_schema(database: Database) -> None:
    """Raise SchemaMismatch, with what to do, unless the schema is exactly the one of this program."""
    with wrong_settings():
        current = await stored_revision(database)
    newest = head_revision()
    if current is None:
        raise SchemaMismatch("the database has no Livewick tables yet: run `livewick migrate`")
    if current != newest:
        raise SchemaMismatch(
            f"the database's schema {current} is older than this program's ({newest}): run `livewick migrate`"
        )


async def stored_revision(database: Database) -> str | None:
    """Return the revision written in the database, or None; raises SchemaMismatch for one that is newer than we are."""
    async with database.reading() as connection:
        await connection.run_sync(refuse_newer)
        return await connection.run_sync(current_revision)


async def check_schema_at(url: str) -> None:
    """Like check_schema, on a database that is not open yet."""
    async with open_database(url) as database:
        await check_schema(database)


@asynccontextmanager
async def migration_connection(url: str, wait_seconds: float = WAIT_SECONDS) -> AsyncIterator[AsyncConnection]:
    """Lend the only connection that may migrate now, in one transaction, committed at the end."""
    address = parse_url(url)
    async with file_lock(address, wait_seconds), open_engine(address, LASTING) as engine:
        with expected_trouble("migrate"):
            async with engine.connect() as connection:
                connection = await connection.execution_options(livewick_write=True)
                async with connection.begin():
                    await advisory_lock(connection, wait_seconds)
                    yield connection


@asynccontextmanager
async def file_lock(address: Address, wait_seconds: float) -> AsyncIterator[None]:
    """Hold a lock file beside an SQLite database; the system lets go of it when a process dies."""
    if address.path is None:
        yield
        return
    with expected_trouble(f"open {address.path}"):
        address.path.parent.mkdir(parents=True, exist_ok=True)
    lock = AsyncFileLock(address.path.with_name(address.path.name + ".migrate.lock"), timeout=wait_seconds)
    with expected_trouble("migrate"):
        try:
            await lock.acquire()
        except Timeout as error:
            raise StoreUnavailable(waited(wait_seconds)) from error
    try:
        yield
    finally:
        await lock.release()


async def advisory_lock(connection: AsyncConnection, wait_seconds: float) -> None:
    """Hold PostgreSQL's lock until the transaction ends (so that it also works behind pgbouncer)."""
    if connection.dialect.name != "postgresql":
        return
    await connection.execute(text("SET LOCAL statement_timeout = 0"))
    await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    await connection.execute(text(f"SET LOCAL lock_timeout = {int(wait_seconds * 1000)}"))
    try:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
            raise
        raise StoreUnavailable(waited(wait_seconds)) from error


def waited(seconds: float) -> str:
    """Say that another process holds the lock."""
    return f"another process is migrating the database; waited {seconds:g} s for it"


def refuse_newer(connection: Connection) -> None:
    """Raise SchemaMismatch when the database was migrated by a later version of this program."""
    current = current_revision(connection)
    known = {script.revision for script in scripts().walk_revisions()}
    if current is not None and current not in known:
        newest = head_revision()
        raise SchemaMismatch(
            f"the database's schema {current} is newer than this program, which knows up to {newest}: "
            "install the newer version, or downgrade the database with it"
        )


def current_revision(connection: Connection) -> str | None:
    """Return the revision written in the database, or None."""
    return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str | None:
    """Return the revision that this program needs."""
    return scripts().get_current_head()


def scripts() -> ScriptDirectory:
    """Return the migrations that come with this program."""
    return ScriptDirectory.from_config(config())


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration, independent of the working directory."""
    made = Config(attributes={"connection": connection})
    # The option goes through %-interpolation.
    made.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return made
