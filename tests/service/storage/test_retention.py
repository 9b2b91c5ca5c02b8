"""Retention: exactly what is too old goes, a little at a time."""

from __future__ import annotations

from service.ports import Event, RecordBatch
from service.storage import SqlCheckpointStore, SqlRecordStore, open_database
from service.storage.retention import prune
from tests.builders import MARKET, at, make_batch, make_candle, make_checkpoint, make_step

OTHER = "simulated:BTC/USDT"


async def test_exactly_what_is_older_goes(url: str) -> None:
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        old = await store.open_run(MARKET, {"a": 1}, 0)
        await store.write(old, make_batch(0, 50))
        run = await store.open_run(MARKET, {"a": 2}, 0)
        batch = make_batch(0, 50)
        batch.events = [Event(MARKET, "gap", {}, at(19)), Event(MARKET, "gap", {}, at(20))]
        await store.write(run, batch)
        other = await store.open_run(OTHER, {}, 0)
        await store.write(
            other, RecordBatch(candles=[make_candle(3, market=OTHER)], steps=[make_step(30, market=OTHER)])
        )
        await SqlCheckpointStore(database).save(run, make_checkpoint(3))
        gone = await prune(database, at(20), batch_rows=7)
        # 20 candles, 20 steps of each run, predictions for candles 1 to 19 of each run, one event, the other's candle
        assert gone == 20 + 2 * 20 + 2 * 19 + 1 + 1
        assert await store.candles(MARKET, None, None, 100) == batch.candles[20:]
        assert await store.steps(MARKET, None, None, 100) == batch.steps[20:]
        assert await store.predictions(MARKET, None, None, 100) == batch.predictions[19:]
        assert [event.at for event in await store.events(MARKET, None, None, 10)] == [at(20)]
        assert await store.candles(OTHER, None, None, 10) == []
        assert len(await store.steps(OTHER, None, None, 10)) == 1
        assert await SqlCheckpointStore(database).latest(run) == make_checkpoint(3)
        assert await store.prune(at(20)) == 0
