"""Recorder: stores what happened, in order, from a bounded backlog, however long the database is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, TypeVarTuple

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from service.ports import Checkpoint, CheckpointStore, RecordBatch, RecordStore, Run, StoreUnavailable

log = structlog.get_logger(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")

BACKLOG_LIMIT = 7200
"""Two hours of 1 s candles: what an outage of the database may last before no more candles are taken."""

BATCH_LIMIT = 500
LINGER_SECONDS = 0.25
"""Least time between two writes: a live candle is written at once, a warm-up's hundreds a second share transactions."""

CHECKPOINTS_WAITING = 2
"""Of the checkpoints that wait for the database only the newest are kept: each holds the whole learner."""


@dataclass(slots=True, eq=False)  # itself and no other: an equal entry may be on its way to the database
class Entry:
    """Something to store, numbered in the order of arrival.

    A ``pinned`` checkpoint is kept whatever comes later: recovery could not do without it.
    """

    record: RecordBatch | Checkpoint
    number: int
    pinned: bool = False


class Recorder:
    """Writes entries in the order they were put; a checkpoint is written after everything put before it.

    ``put`` waits only when the backlog is full. Publishing never waits for the database.
    """

    def __init__(self, store: RecordStore, checkpoints: CheckpointStore, limit: int = BACKLOG_LIMIT) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._limit = limit
        # Full: put() waits, so the pipeline stops taking candles and says why.
        self._entries: deque[Entry] = deque()
        self._last_number = 0
        self._arrived = asyncio.Event()
        self._stored = asyncio.Event()
        self.database_ok = True

    @property
    def backlog(self) -> int:
        """How many entries wait to be stored, the ones being written included."""
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether ``put`` would wait."""
        return len(self._entries) >= self._limit

    async def put(self, record: RecordBatch | Checkpoint) -> None:
        """Queue the record; waits while the backlog is full."""
        await self._until(lambda: not self.full)
        if isinstance(record, Checkpoint):
            self._drop_old_checkpoints()
        self._append(record)

    def put_soon(self, record: RecordBatch) -> None:
        """Queue a rare small record from a callback, also past the limit."""
        self._append(record)

    def pin_newest_checkpoint(self) -> None:
        """Keep the newest checkpoint that still waits, if one does, whatever comes later."""
        for entry in reversed(self._entries):
            if isinstance(entry.record, Checkpoint):
                entry.pinned = True
                return

    async def drained(self) -> None:
        """Return when everything put so far is stored, however much is put meanwhile."""
        last = self._last_number
        await self._until(lambda: not self._entries or self._entries[0].number > last)

    async def run(self, run: Run) -> None:
        """Store for ever. Nothing leaves the backlog before the database has it."""
        loop = asyncio.get_running_loop()
        last_write = -LINGER_SECONDS
        while True:
            while not self._entries:
                self._arrived.clear()
                await self._arrived.wait()
            await asyncio.sleep(last_write + LINGER_SECONDS - loop.time())
            last_write = loop.time()
            count, write = self._next_write(run)
            await self.insist(write)
            for _ in range(count):
                self._entries.popleft()
            self._stored.set()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._stored.clear()
            await self._stored.wait()

    def _append(self, record: RecordBatch | Checkpoint) -> None:
        self._last_number += 1
        self._entries.append(Entry(record, self._last_number))
        self._arrived.set()

    async def insist(self, call: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Make the call until the database takes it, with backoff and jitter; an outage is logged once."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailable),
            wait=wait_random_exponential(multiplier=0.1, max=3),
            before_sleep=self._note_outage,
        ):
            with attempt:
                result = await call(*args)
        if not self.database_ok:
            self.database_ok = True
            log.info("database is back", backlog=self.backlog)
        return result

    def _next_write(self, run: Run) -> tuple[int, Callable[[], Awaitable[None]]]:
        """Return how many entries the next write covers, and the write."""
        first = self._entries[0].record
        if isinstance(first, Checkpoint):
            return 1, lambda: self._checkpoints.save(run, first)
        batch, count = RecordBatch(), 0
        for entry in self._entries:
            record = entry.record
            # A correction replaces a row, so it stays apart from the rows written before it.
            if isinstance(record, Checkpoint) or count == BATCH_LIMIT or (record.corrections and count):
                break
            _extend(batch, record)
            count += 1
            if record.corrections:
                break
        return count, lambda: self._store.write(run, batch)

    def _drop_old_checkpoints(self) -> None:
        """Make room for a new checkpoint; the first entry may be on its way to the database and stays."""
        waiting = [entry for entry in islice(self._entries, 1, None) if isinstance(entry.record, Checkpoint)]
        loose = [entry for entry in waiting if not entry.pinned]
        for entry in loose[: len(loose) - CHECKPOINTS_WAITING + 1]:
            self._entries.remove(entry)

    def _note_outage(self, state: RetryCallState) -> None:
        if self.database_ok:
            self.database_ok = False
            error = state.outcome.exception() if state.outcome else None
            log.warning("database is away; predictions go on", reason=str(error), backlog=self.backlog)


def _extend(batch: RecordBatch, entry: RecordBatch) -> None:
    batch.candles += entry.candles
    batch.corrections += entry.corrections
    batch.predictions += entry.predictions
    batch.steps += entry.steps
    batch.trends += entry.trends
    batch.events += entry.events
