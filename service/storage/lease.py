"""Leases: one trainer per market, however many copies of the service are started on one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.ports import StoreUnavailable
from service.storage.database import LASTING, Database, Lease, open_engine
from service.storage.errors import MarketTaken, expected_trouble
from service.storage.locks import lock_key

HOLDER = """
    SELECT a.pid, a.backend_start::text AS started FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
"""
END_GHOST = """
    SELECT pg_terminate_backend(a.pid)
    FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
    WHERE l.locktype = 'advisory' AND l.granted AND (l.classid::bigint << 32) | l.objid::bigint = :key
        AND a.pid = :pid AND a.backend_start::text = :started
"""


@asynccontextmanager
async def market_lease(database: Database, market: str) -> AsyncIterator[Lease]:
    """Be the only trainer of this market on this database for the length of the context.

    Raises MarketTaken when another process is. While the lease is held, every write of the market's records makes sure
    of it first: after an outage it is taken again, or the write raises MarketTaken if somebody else was faster.
    """
    if market in database.leases:
        raise MarketTaken(f"this process already trains {market}")
    async with make_lease(database, market) as lease:
        try:
            await lease.ensure()
            database.leases[market] = lease
            yield lease
        finally:
            if database.leases.get(market) is lease:
                del database.leases[market]
            await lease.release()


@asynccontextmanager
async def make_lease(database: Database, market: str) -> AsyncIterator[FileLease | PostgresLease]:
    """Lend a lease that is not held yet."""
    path = database.address.path
    if path is None:
        async with open_engine(database.address, LASTING) as engine:
            yield PostgresLease(engine, database, market)
        return
    locks = [lease.lock for lease in database.leases.values() if isinstance(lease, FileLease)]
    yield FileLease(path, locks[0] if locks else FileLock(path.with_name(path.name + ".lock"), thread_local=False))


class FileLease:
    """A lock file beside an SQLite database: one process trains on the file, whatever its markets.

    ``lock`` counts its holders: the markets of one process share it.
    """

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.lock = lock
        self._path = path
        self._held = False

    async def ensure(self) -> None:
        """Take the lock if it is not held; the system lets go of it only when this process ends."""
        if self._held:
            return
        with expected_trouble(f"lock {self._path}"):
            try:
                self.lock.acquire(timeout=0)
            except Timeout as error:
                raise MarketTaken(f"another Livewick is using {self._path}; stop it first") from error
        self._held = True

    async def release(self) -> None:
        """Let go."""
        if self._held:
            self._held = False
            self.lock.release()


class PostgresLease:
    """An advisory lock on a connection of its own: PostgreSQL lets go of it when that connection ends."""

    def __init__(self, engine: AsyncEngine, database: Database, market: str) -> None:
        self._engine = engine
        self._pgbouncer = database.address.pgbouncer
        self._timeout_seconds = database.read_timeout_seconds
        self._market = market
        self._key = lock_key("lease", market)
        self._one_at_a_time = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._holder: tuple[int, str] | None = None

    async def ensure(self) -> None:
        """Make sure that the lock is held, taking it again after its connection was lost.

        Raises StoreUnavailable when the database does not answer, MarketTaken when somebody else holds the lock.
        """
        async with self._one_at_a_time:
            if self._connection is not None:
                try:
                    with expected_trouble("answer"):
                        async with asyncio.timeout(self._timeout_seconds):
                            await self._connection.execute(text("SELECT 1"))
                    return
                except StoreUnavailable:
                    await self._hang_up()
            await self._take()

    async def release(self) -> None:
        """Let go, by ending the connection."""
        await self._hang_up()

    async def _take(self) -> None:
        try:
            with expected_trouble("lend a market"):
                async with asyncio.timeout(self._timeout_seconds):
                    await self._connect_and_lock()
        except BaseException:
            await self._hang_up()
            raise

    async def _connect_and_lock(self) -> None:
        connection = await self._engine.connect()
        self._connection = connection
        if self._pgbouncer:
            # Only an open transaction keeps its connection to the server there.
            function = "pg_try_advisory_xact_lock"
            await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        else:
            function = "pg_try_advisory_lock"
            await connection.execution_options(isolation_level="AUTOCOMMIT")
        if (await connection.execute(text(f"SELECT {function}(:key)"), {"key": self._key})).scalar_one():
            row = (await connection.execute(text(HOLDER))).one()
            self._holder = (row.pid, row.started)
        elif await self._end_ghost(connection):
            raise StoreUnavailable("the market's old lease is being ended")
        else:
            raise MarketTaken(f"another Livewick trains {self._market} on this database")

    async def _end_ghost(self, connection: AsyncConnection) -> bool:
        """End the session that held our lock before our connection broke, if PostgreSQL has not noticed yet."""
        if self._holder is None:
            return False
        pid, started = self._holder
        ours = await connection.execute(text(END_GHOST), {"key": self._key, "pid": pid, "started": started})
        return ours.first() is not None

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if not connection.invalidated:
                await connection.invalidate()
            await connection.close()
