"""Database: one engine, opened from a URL, with bounded reads and one writer at a time on SQLite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakSet

from sqlalchemy import URL, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.storage.address import Address, parse_url
from service.storage.errors import expected_trouble
from service.storage.same_file import SameFile
from service.strict_json import encode_exactly

CONNECT_TIMEOUT_SECONDS = 3.5
CLOSE_TIMEOUT_SECONDS = 2.0
READ_TIMEOUT_SECONDS = 3.5
WRITE_TIMEOUT_SECONDS = 8.0
# Steps of SQLite's machine between two looks at the clock: a few milliseconds.
PROGRESS_EVERY = 20_000
COMMON = {"application_name": "livewick", "timezone": "UTC"}
# A statement or a transaction of ours that takes longer than we wait for it ends on the server too.
POOLED = {"statement_timeout": "5000", "idle_in_transaction_session_timeout": "15000"}
# For a connection that is kept: when its network goes away, the server notices within half a minute.
LASTING = {
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


class Lease(Protocol):
    """The right to write a market's records."""

    async def ensure(self) -> None:
        """Return while the right is held or could be had again, else raise MarketTaken or StoreUnavailable."""
        ...


@dataclass(frozen=True, eq=False)
class Database:
    """An open database. Use ``reading`` and ``writing``; both turn expected trouble into StoreUnavailable."""

    address: Address
    engine: AsyncEngine
    read_timeout_seconds: float = READ_TIMEOUT_SECONDS
    write_timeout_seconds: float = WRITE_TIMEOUT_SECONDS
    file: SameFile | None = None
    # SQLite has one writer; waiting here is cheaper and fairer than its busy loop.
    writer: asyncio.Lock = field(default_factory=asyncio.Lock)
    # By market: who writes makes sure of these first.
    leases: dict[str, Lease] = field(default_factory=dict)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection for a few quick queries; raises StoreUnavailable after ``read_timeout_seconds``."""
        timeout_seconds = self.read_timeout_seconds
        with expected_trouble("answer"):
            async with asyncio.timeout(timeout_seconds), self._connected() as connection:
                await self._stop_when_given_up(connection, timeout_seconds)
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection for one transaction, committed at the end or rolled back whole."""
        timeout_seconds = self.write_timeout_seconds
        with expected_trouble("store"):
            async with asyncio.timeout(timeout_seconds), AsyncExitStack() as stack:
                if self.address.is_sqlite:
                    await stack.enter_async_context(self.writer)
                connection = await stack.enter_async_context(self._connected())
                connection = await connection.execution_options(livewick_write=True)
                async with connection.begin():
                    await self._stop_when_given_up(connection, timeout_seconds)
                    yield connection

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        if self.file is not None:
            self.file.check()
        async with self.engine.connect() as connection:
            if self.file is not None:
                self.file.note()
            yield connection

    async def ensure_lease(self, market: str) -> None:
        """Return when nothing forbids this process to write the market's records.

        Raises MarketTaken when another process has become its trainer.
        """
        if (lease := self.leases.get(market)) is not None:
            await lease.ensure()

    async def _stop_when_given_up(self, connection: AsyncConnection, seconds: float) -> None:
        """Let SQLite stop computing after ``seconds`` or when this task is cancelled: its thread hears of neither."""
        if not self.address.is_sqlite:
            return
        task, deadline = asyncio.current_task(), time.monotonic() + seconds
        driver: Any = (await connection.get_raw_connection()).driver_connection

        def given_up() -> bool:
            return time.monotonic() > deadline or (task is not None and task.cancelling() > 0)

        await driver.set_progress_handler(given_up, PROGRESS_EVERY)

    async def ping(self) -> None:
        """Return when the database answers."""
        query = "PRAGMA schema_version" if self.address.is_sqlite else "SELECT 1"
        async with self.reading() as connection:
            await connection.execute(text(query))


@asynccontextmanager
async def open_database(
    url: str,
    read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
    write_timeout_seconds: float = WRITE_TIMEOUT_SECONDS,
) -> AsyncIterator[Database]:
    """Open the database for the length of the context; nothing is asked of it yet (see ``Database.ping``)."""
    address = parse_url(url)
    async with open_engine(address) as engine:
        file = SameFile(address.path) if address.path is not None else None
        yield Database(address, engine, read_timeout_seconds, write_timeout_seconds, file)


@asynccontextmanager
async def open_engine(address: Address, server_settings: Mapping[str, str] = POOLED) -> AsyncIterator[AsyncEngine]:
    """Lend an engine and close its connections at the end, those that do not close in time by force."""
    engine = make_engine(address, server_settings)
    drivers: WeakSet[Any] = WeakSet()
    event.listen(engine.sync_engine, "connect", lambda connection, _: drivers.add(connection.driver_connection))
    try:
        yield engine
    finally:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await engine.dispose()
        except (TimeoutError, OSError):
            # A database that hangs or is gone has no say in when this process ends.
            for driver in drivers:
                driver.stop() if address.is_sqlite else driver.terminate()


def make_engine(address: Address, server_settings: Mapping[str, str] = POOLED) -> AsyncEngine:
    """Return a lazy engine; ``server_settings`` are for PostgreSQL (pgbouncer refuses them)."""
    if address.path is not None:
        return sqlite_engine(address.url, address.path)
    return postgres_engine(address, server_settings)


def sqlite_engine(url: URL, path: Path) -> AsyncEngine:
    """Return an engine on a file whose folder is made; WAL, every commit on the disk before it returns."""
    with expected_trouble(f"open {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_async_engine(
        url.set(database=str(path)), connect_args={"timeout": 5.0}, json_serializer=encode_exactly, pool_timeout=3.0
    )
    event.listen(engine.sync_engine, "connect", set_pragmas)
    event.listen(engine.sync_engine, "begin", begin)
    return engine


def set_pragmas(connection: Any, _record: Any) -> None:
    """Set what SQLite keeps per connection."""
    connection.isolation_level = None  # transactions begin in ``begin`` below, DDL included
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "journal_size_limit=67108864"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def begin(connection: Any) -> None:
    """Begin a transaction; a writer takes the lock at once, where waiting for it still works."""
    write = connection.get_execution_options().get("livewick_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def postgres_engine(address: Address, server_settings: Mapping[str, str]) -> AsyncEngine:
    """Return an engine whose connections are checked before use."""
    if address.pgbouncer:
        # Behind transaction pooling a connection's prepared statements and settings belong to somebody else later on.
        return create_async_engine(
            address.url.update_query_dict({"prepared_statement_cache_size": "0"}),
            poolclass=NullPool,
            json_serializer=encode_exactly,
            connect_args={
                "timeout": CONNECT_TIMEOUT_SECONDS,
                "statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"__livewick_{uuid4().hex}__",
            },
        )
    return create_async_engine(
        address.url,
        pool_pre_ping=True,
        pool_timeout=3.0,
        pool_recycle=1800,
        json_serializer=encode_exactly,
        connect_args={"timeout": CONNECT_TIMEOUT_SECONDS, "server_settings": {**COMMON, **server_settings}},
    )
