"""What every implementation of a port must do, real and fake alike. Each list holds the checks of one port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from models.candle import Candle
from models.records import TrendOutcome
from service.ports import (
    CandleFeed,
    CheckpointStore,
    Correction,
    Event,
    FeedItem,
    Gap,
    RecordBatch,
    RecordStore,
    Run,
    SeriesPoint,
)
from tests.builders import MARKET, at, make_batch, make_candle, make_checkpoint, make_prediction, make_step

# --- RecordStore ----------------------------------------------------------------------------------------------------

CONFIG = {"model": "small", "learning_rate": 0.001, "window": 200}


async def a_market_without_a_run_has_nothing(store: RecordStore) -> None:
    assert await store.latest_run(MARKET) is None
    assert await store.candles(MARKET, None, None, 10) == []
    assert await store.last_candles(MARKET, 10) == []
    assert await store.predictions(MARKET, None, None, 10) == []
    assert await store.steps(MARKET, None, None, 10) == []
    assert await store.events(MARKET, None, None, 10) == []
    assert await store.series(MARKET, ["loss"], 60, None, None, 10) == []


async def the_same_configuration_continues_the_run(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 7)
    assert (run.market, run.config, run.started_at) == (MARKET, CONFIG, 7)
    assert await store.open_run(MARKET, dict(reversed(CONFIG.items())), 8) == run
    assert await store.latest_run(MARKET) == run


async def another_configuration_starts_a_run(store: RecordStore) -> None:
    first = await store.open_run(MARKET, CONFIG, 7)
    second = await store.open_run(MARKET, {**CONFIG, "window": 100}, 8)
    third = await store.open_run(MARKET, CONFIG, 9)
    assert len({first.id, second.id, third.id}) == 3
    assert await store.latest_run(MARKET) == third


async def runs_of_markets_are_apart(store: RecordStore) -> None:
    mine = await store.open_run(MARKET, CONFIG, 7)
    other = await store.open_run("simulated:BTC/USDT", CONFIG, 7)
    assert mine.id != other.id
    await store.write(other, RecordBatch(steps=[make_step(market="simulated:BTC/USDT")]))
    assert await store.steps(MARKET, None, None, 10) == []


async def what_was_written_is_read_back_to_the_last_bit(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    tiny = 5e-324
    candle = make_candle(3, open=0.1 + 0.2, close=0.3, high=1.7976931348623157e307, low=tiny, volume=0.0)
    prediction = make_prediction(4, p_down=1 / 3, weights={"b": 1 / 7, "a": 1e-17}, simulated=True)
    step = make_step(3, loss=2.0**-1074, correct=None, skipped="gap", direction=None, label="flat", lag_ms=-0.1)
    event = Event(MARKET, "gap", {"from": 1, "to": {"x": [1, None, 0.1, "Ω \0"]}}, 5)
    await store.write(run, RecordBatch(candles=[candle], predictions=[prediction], steps=[step], events=[event]))
    assert await store.candles(MARKET, None, None, 10) == [candle]
    assert await store.predictions(MARKET, None, None, 10) == [prediction]
    assert list((await store.predictions(MARKET, None, None, 10))[0].weights) == ["b", "a"]
    assert await store.steps(MARKET, None, None, 10) == [step]
    assert await store.events(MARKET, None, None, 10) == [event]


async def writing_again_changes_nothing(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    batch = make_batch(0, 3)
    batch.events.append(Event(MARKET, "gap", {"from": 1}, 5))
    batch.events.append(Event(MARKET, "gap", {"from": 2}, 5))
    await store.write(run, batch)
    await store.write(run, batch)
    later = [replace(row, loss=99.0) for row in batch.steps]
    predictions = [replace(row, made_at=99) for row in batch.predictions]
    await store.write(run, RecordBatch(predictions=predictions, steps=later))
    assert await store.candles(MARKET, None, None, 10) == batch.candles
    assert await store.predictions(MARKET, None, None, 10) == batch.predictions
    assert await store.steps(MARKET, None, None, 10) == batch.steps
    assert await store.events(MARKET, None, None, 10) == batch.events


async def a_candle_replaces_the_one_of_the_run_before(store: RecordStore) -> None:
    first = await store.open_run(MARKET, CONFIG, 0)
    await store.write(first, make_batch(0, 3))
    second = await store.open_run(MARKET, {**CONFIG, "window": 100}, 1)
    learned = make_candle(1, volume=77.0, source="backfill")
    await store.write(second, RecordBatch(candles=[learned, make_candle(3)]))
    assert await store.candles(MARKET, None, None, 10) == [make_candle(0), learned, make_candle(2), make_candle(3)]


async def a_correction_replaces_the_candle(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    await store.write(run, make_batch(0, 3))
    corrected, new = make_candle(1, volume=77.0, source="backfill"), make_candle(9)
    await store.write(run, RecordBatch(corrections=[corrected, new]))
    assert await store.candles(MARKET, None, None, 10) == [make_candle(0), corrected, make_candle(2), new]


async def a_trend_marks_the_step_it_was_about(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    await store.write(run, make_batch(0, 3))
    batch = make_batch(3, 1)
    batch.trends = [TrendOutcome(at(0), True), TrendOutcome(at(2), False), TrendOutcome(at(3), True)]
    await store.write(run, batch)
    await store.write(run, RecordBatch(trends=[TrendOutcome(at(99), True)]))
    marks = [step.trend_correct for step in await store.steps(MARKET, None, None, 10)]
    assert marks == [True, None, False, True]


async def ranges_are_half_open_ascending_and_limited(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    batch = make_batch(0, 6)
    for rows in (batch.candles, batch.predictions, batch.steps):
        rows.reverse()
    batch.events = [Event(MARKET, "stale", {}, at(index)) for index in (3, 1, 2)]
    await store.write(run, batch)
    bounds = (MARKET, at(1), at(4), 2)
    assert [row.open_time for row in await store.candles(*bounds)] == [at(1), at(2)]
    assert [row.open_time for row in await store.steps(*bounds)] == [at(1), at(2)]
    assert [row.open_time for row in await store.predictions(*bounds)] == [at(1), at(2)]
    assert [row.at for row in await store.events(*bounds)] == [at(1), at(2)]
    assert [row.open_time for row in await store.steps(MARKET, at(1), at(4), 10)] == [at(1), at(2), at(3)]
    assert [row.open_time for row in await store.last_candles(MARKET, 2)] == [at(4), at(5)]
    assert await store.steps(MARKET, at(4), at(1), 10) == []


async def reads_are_of_the_newest_run(store: RecordStore) -> None:
    first = await store.open_run(MARKET, CONFIG, 0)
    await store.write(first, make_batch(0, 3))
    second = await store.open_run(MARKET, {**CONFIG, "window": 1}, 1)
    assert await store.steps(MARKET, None, None, 10) == []
    await store.write(second, make_batch(2, 1))
    assert [row.open_time for row in await store.steps(MARKET, None, None, 10)] == [at(2)]
    assert [row.open_time for row in await store.predictions(MARKET, None, None, 10)] == [at(3)]
    assert [row.count for row in await store.series(MARKET, ["loss"], 60, None, None, 10)] == [1]
    assert len(await store.candles(MARKET, None, None, 10)) == 3


async def a_series_averages_what_is_known(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    opened = 1_700_000_040_000
    rows = [
        make_step(open_time=opened, loss=1.0, correct=True, lag_ms=None),
        make_step(open_time=opened + 59_999, loss=None, correct=False, lag_ms=None),
        make_step(open_time=opened + 60_000, loss=0.5, correct=True, trend_correct=False),
        make_step(open_time=opened + 9_999_000, loss=4.0, correct=None),
    ]
    await store.write(run, RecordBatch(steps=rows))
    fields = ["loss", "accuracy", "trend_accuracy", "lag_ms"]
    points = [
        SeriesPoint(opened, 2, {"loss": 1.0, "accuracy": 0.5, "trend_accuracy": None, "lag_ms": None}),
        SeriesPoint(opened + 60_000, 1, {"loss": 0.5, "accuracy": 1.0, "trend_accuracy": 0.0, "lag_ms": 30.5}),
        SeriesPoint(opened + 9_960_000, 1, {"loss": 4.0, "accuracy": None, "trend_accuracy": None, "lag_ms": 30.5}),
    ]
    assert await store.series(MARKET, fields, 60, None, None, 10) == points
    assert await store.series(MARKET, fields, 60, None, None, 2) == points[:2]
    assert await store.series(MARKET, fields, 60, opened + 60_000, opened + 9_999_000, 10) == points[1:2]
    assert [point.count for point in await store.series(MARKET, [], 3600, None, None, 10)] == [3, 1]
    with pytest.raises(ValueError, match="nonsense"):
        await store.series(MARKET, ["nonsense"], 60, None, None, 10)


async def an_empty_batch_is_nothing(store: RecordStore) -> None:
    run = await store.open_run(MARKET, CONFIG, 0)
    await store.write(run, RecordBatch())
    await store.ping()
    assert await store.candles(MARKET, None, None, 10) == []


RecordCheck = Callable[[RecordStore], Awaitable[None]]
RECORD_STORE_CHECKS: list[RecordCheck] = [
    a_market_without_a_run_has_nothing,
    the_same_configuration_continues_the_run,
    another_configuration_starts_a_run,
    runs_of_markets_are_apart,
    what_was_written_is_read_back_to_the_last_bit,
    writing_again_changes_nothing,
    a_candle_replaces_the_one_of_the_run_before,
    a_correction_replaces_the_candle,
    a_trend_marks_the_step_it_was_about,
    ranges_are_half_open_ascending_and_limited,
    reads_are_of_the_newest_run,
    a_series_averages_what_is_known,
    an_empty_batch_is_nothing,
]

# --- CheckpointStore ------------------------------------------------------------------------------------------------


async def a_run_without_checkpoints_has_none(store: CheckpointStore, run: Run, other: Run) -> None:
    await store.save(other, make_checkpoint())
    assert await store.latest(run) is None
    assert await store.previous(run, at(99)) is None


async def the_newest_checkpoint_comes_back_whole(store: CheckpointStore, run: Run, other: Run) -> None:
    newest = make_checkpoint(2, loss=0.1 + 0.2, data=bytes(range(256)) * 1000)
    await store.save(run, newest)
    await store.save(run, make_checkpoint(1, loss=None))
    assert await store.latest(run) == newest
    assert await store.previous(run, at(2)) == make_checkpoint(1, loss=None)
    assert await store.previous(run, at(1)) is None


async def saving_again_replaces(store: CheckpointStore, run: Run, other: Run) -> None:
    await store.save(run, make_checkpoint(1, data=b"old"))
    await store.set_aside(run, make_checkpoint(1), "did not load")
    await store.save(run, make_checkpoint(1, data=b"new"))
    assert await store.latest(run) == make_checkpoint(1, data=b"new")


async def the_last_five_and_the_best_are_kept(store: CheckpointStore, run: Run, other: Run) -> None:
    for index, loss in enumerate([0.5, 0.9, 0.2, None, 0.8, 0.8, 0.8, 0.8, 0.8]):
        await store.save(run, make_checkpoint(index, loss=loss))
    kept, before = [], at(99)
    while (checkpoint := await store.previous(run, before)) is not None:
        kept.append(checkpoint.step)
        before = checkpoint.open_time
    assert kept == [8, 7, 6, 5, 4, 2]


async def a_checkpoint_set_aside_is_never_offered(store: CheckpointStore, run: Run, other: Run) -> None:
    for index in range(3):
        await store.save(run, make_checkpoint(index))
    await store.set_aside(run, make_checkpoint(2), "did not load")
    await store.set_aside(run, make_checkpoint(0), "did not load")
    assert await store.latest(run) == make_checkpoint(1)
    assert await store.previous(run, at(1)) is None


CheckpointCheck = Callable[[CheckpointStore, Run, Run], Awaitable[None]]
CHECKPOINT_STORE_CHECKS: list[CheckpointCheck] = [
    a_run_without_checkpoints_has_none,
    the_newest_checkpoint_comes_back_whole,
    saving_again_replaces,
    the_last_five_and_the_best_are_kept,
    a_checkpoint_set_aside_is_never_offered,
]

# --- CandleFeed -----------------------------------------------------------------------------------------------------

BACKFILL = 20


@dataclass(frozen=True)
class FeedUnderTest:
    """A market to follow again and again. ``truth`` tells its open, high, low, close and volume at an open time."""

    open: Callable[[], CandleFeed]
    now_ms: Callable[[], float]
    truth: Callable[[int], Sequence[float]]


async def candles_come_once_in_order_without_a_hole(market: FeedUnderTest) -> None:
    async with market.open() as feed:
        times = [candle.open_time for candle in await _candles(feed, 40)]
    assert times == [times[0] + feed.interval_ms * number for number in range(40)]


async def a_stream_begins_with_the_backfill(market: FeedUnderTest) -> None:
    async with market.open() as feed:
        begun = market.now_ms()
        first = (await _candles(feed, 1))[0].open_time
    # Clocks may be told in whole seconds; and a market may have been quiet just then, with no price known to fill in.
    assert begun - (BACKFILL + 3) * feed.interval_ms <= first <= market.now_ms() - BACKFILL / 2 * feed.interval_ms


async def a_stream_resumes_right_after_the_last_candle(market: FeedUnderTest) -> None:
    async with market.open() as feed:
        known = await _candles(feed, BACKFILL)
    async with market.open() as feed:
        resumed = await _candles(feed, BACKFILL, known[4].open_time, known[:5])
    assert resumed[0].open_time == known[5].open_time
    for one, other in zip(resumed, known[5:], strict=False):
        assert _values(one) == pytest.approx(_values(other), abs=1e-9)


async def candles_are_what_the_market_did(market: FeedUnderTest) -> None:
    async with market.open() as feed:
        candles = await _candles(feed, 40)
    assert {candle.market for candle in candles} == {feed.market}
    for candle in candles:
        assert _values(candle) == pytest.approx(tuple(market.truth(candle.open_time)), abs=1e-9)


async def the_state_tells_of_the_last_candle(market: FeedUnderTest) -> None:
    async with market.open() as feed:
        last = (await _candles(feed, 40))[-1]
        state = feed.state()
    assert state.status in ("live", "backfilling")
    # More may be known than was taken.
    assert state.last_open_time is not None
    assert state.last_open_time >= last.open_time


async def stored_candles_that_the_exchange_tells_differently_are_corrected(market: FeedUnderTest) -> None:
    async with market.open() as feed:
        right = await _candles(feed, BACKFILL)
    told = [candle for candle in right if candle.volume > 0][-2]
    stored = [replace(candle, high=candle.high + 1) if candle is told else candle for candle in right]
    async with market.open() as feed, _stream(feed, stored[-1].open_time, stored) as stream:
        item = await anext(stream)
        while not isinstance(item, Correction):
            assert not isinstance(item, Gap)
            item = await anext(stream)
    assert _values(item.candle) == pytest.approx(_values(told), abs=1e-9)


async def left_in_the_middle_of_a_stream_it_is_closed(market: FeedUnderTest) -> None:
    async with market.open() as feed, _stream(feed, None) as stream:
        assert feed.state().status == "starting"
        await anext(stream)
    assert feed.state().status == "closed"


async def _candles(
    feed: CandleFeed, count: int, after: int | None = None, recent: Sequence[Candle] = ()
) -> list[Candle]:
    candles: list[Candle] = []
    async with _stream(feed, after, recent) as stream:
        while len(candles) < count:
            item = await anext(stream)
            assert not isinstance(item, Gap)
            candles += [item] if isinstance(item, Candle) else []
    return candles


def _stream(
    feed: CandleFeed, after: int | None, recent: Sequence[Candle] = ()
) -> contextlib.aclosing[AsyncGenerator[FeedItem, None]]:
    return contextlib.aclosing(cast(AsyncGenerator[FeedItem, None], feed.stream(after, BACKFILL, recent)))


def _values(candle: Candle) -> tuple[float, ...]:
    return candle.open, candle.high, candle.low, candle.close, candle.volume


FeedCheck = Callable[[FeedUnderTest], Awaitable[None]]
CANDLE_FEED_CHECKS: list[FeedCheck] = [
    candles_come_once_in_order_without_a_hole,
    a_stream_begins_with_the_backfill,
    a_stream_resumes_right_after_the_last_candle,
    candles_are_what_the_market_did,
    the_state_tells_of_the_last_candle,
]
LIVE_FEED_CHECKS: list[FeedCheck] = [
    *CANDLE_FEED_CHECKS,
    stored_candles_that_the_exchange_tells_differently_are_corrected,
    left_in_the_middle_of_a_stream_it_is_closed,
]
