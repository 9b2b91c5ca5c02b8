"""Recorder: in order, each once, however long the database is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from models.candle import Candle
from service.ports import Checkpoint, RecordBatch, Run
from service.recorder import Recorder
from tests.builders import MARKET, at, make_batch, make_candle, make_checkpoint
from tests.fakes import InMemoryStore
from tests.support.eventually import eventually


class LoggingStore(InMemoryStore):
    """Remembers the order of writes."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    async def write(self, run: Run, batch: RecordBatch) -> None:
        await super().write(run, batch)
        self.log += [f"candle {candle.open_time}" for candle in batch.candles]
        self.log += [f"correction {candle.open_time}" for candle in batch.corrections]

    async def save(self, run: Run, checkpoint: Checkpoint) -> None:
        await super().save(run, checkpoint)
        self.log.append(f"checkpoint {checkpoint.open_time}")


@asynccontextmanager
async def recording(store: InMemoryStore, limit: int = 100) -> AsyncIterator[Recorder]:
    recorder = Recorder(store, store, limit)
    task = asyncio.create_task(recorder.run(await store.open_run(MARKET, {}, 0)))
    try:
        async with asyncio.timeout(10):
            yield recorder
    finally:
        task.cancel()


async def test_everything_is_stored_in_the_order_it_was_put() -> None:
    store = LoggingStore()
    async with recording(store) as recorder:
        await recorder.put(make_batch(0))
        await recorder.put(make_checkpoint(0))
        await recorder.put(RecordBatch(corrections=[make_candle(0, volume=9.0)]))
        await recorder.put(make_batch(1))
        await recorder.drained()
    assert store.log == [
        f"candle {at(0)}",
        f"checkpoint {at(0)}",
        f"correction {at(0)}",
        f"candle {at(1)}",
    ]
    assert (await store.candles(MARKET, None, None, 1))[0].volume == 9.0


async def test_an_outage_loses_nothing_and_is_shown() -> None:
    store = LoggingStore()
    async with recording(store) as recorder:
        store.unavailable = "connection refused"
        for index in range(10):
            await recorder.put(make_batch(index))
        await eventually(lambda: not recorder.database_ok)
        assert recorder.backlog == 10
        store.unavailable = None
        await recorder.drained()
        assert recorder.database_ok
    assert store.log == [f"candle {at(index)}" for index in range(10)]


async def test_a_full_backlog_makes_put_wait_and_never_drops() -> None:
    store = LoggingStore()
    store.unavailable = None
    async with recording(store, limit=3) as recorder:
        store.unavailable = "disk full"
        for index in range(3):
            await recorder.put(make_batch(index))
        assert recorder.full
        waiting = asyncio.create_task(recorder.put(make_batch(3)))
        await asyncio.sleep(0)
        assert not waiting.done()
        store.unavailable = None
        await waiting
        await recorder.drained()
    assert store.log == [f"candle {at(index)}" for index in range(4)]


async def test_drained_means_what_was_put_so_far_though_more_keeps_coming() -> None:
    store = LoggingStore()
    recorder = Recorder(store, store, 100)

    async def keep_putting() -> None:
        for index in range(1, 100_000):
            await recorder.put(make_batch(index))

    await recorder.put(make_batch(0))
    putting = asyncio.create_task(keep_putting())
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        writing = group.create_task(recorder.run(await store.open_run(MARKET, {}, 0)))
        await recorder.drained()
        assert f"candle {at(0)}" in store.log
        assert not putting.done()
        putting.cancel()
        writing.cancel()


async def test_of_many_waiting_checkpoints_only_the_newest_are_kept() -> None:
    store = LoggingStore()
    async with recording(store) as recorder:
        store.unavailable = "away"
        for index in range(6):
            await recorder.put(make_batch(index))
            await recorder.put(make_checkpoint(index))
        store.unavailable = None
        await recorder.drained()
    assert [line for line in store.log if line.startswith("checkpoint")] == [
        f"checkpoint {at(4)}",
        f"checkpoint {at(5)}",
    ]
    assert len(await store.candles(MARKET, None, None, 100)) == 6


async def test_a_pinned_checkpoint_is_never_dropped() -> None:
    store = LoggingStore()
    async with recording(store) as recorder:
        store.unavailable = "away"
        for index in range(6):
            await recorder.put(make_batch(index))
            await recorder.put(make_checkpoint(index))
            if index == 1:
                recorder.pin_newest_checkpoint()
        store.unavailable = None
        await recorder.drained()
    saved = [line for line in store.log if line.startswith("checkpoint")]
    assert saved == [f"checkpoint {at(index)}" for index in (1, 4, 5)]


async def test_a_bug_ends_the_recorder_instead_of_being_retried() -> None:
    class BuggyStore(InMemoryStore):
        async def write(self, run: Run, batch: RecordBatch) -> None:
            raise AssertionError("a bug")

    store = BuggyStore()
    recorder = Recorder(store, store)
    await recorder.put(make_batch(0))
    with pytest.raises(AssertionError, match="a bug"):
        await recorder.run(await store.open_run(MARKET, {}, 0))


async def test_a_rare_entry_from_a_callback_is_stored_at_once() -> None:
    store = LoggingStore()
    async with recording(store) as recorder:
        recorder.put_soon(make_batch(0))
        await recorder.drained()
    stored: list[Candle] = await store.candles(MARKET, None, None, 10)
    assert [candle.open_time for candle in stored] == [at(0)]
