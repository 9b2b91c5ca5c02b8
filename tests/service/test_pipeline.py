"""The pipeline: the life of a candle, in the order that is never changed, and every way back after a fall."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from models.candle import Candle
from models.checkpoint import load_state
from models.config import LearnerConfig
from models.learner import Learner
from models.records import Learned, LearnerEvent, Step
from service.market import FollowedMarket
from service.pipeline import MarketPipeline, PipelineOptions
from service.ports import Correction, FeedItem, Gap, LearnerUnavailable, LivewickError, Notice, StoreUnavailable
from tests.builders import MARKET, at, make_candle
from tests.fakes import InMemoryStore
from tests.support.eventually import eventually
from tests.support.feeds import ScriptedFeed
from tests.support.learners import InProcessLearner

CONFIG = LearnerConfig(market=MARKET, tick=0.01, trend_horizon=3)


class Frames:
    """Collects what subscribers would get; ``calls`` interleaves them with the learner's calls."""

    def __init__(self, learner: InProcessLearner) -> None:
        self.frames: list[tuple[str, dict[str, Any]]] = []
        self._learner = learner

    def publish(self, kind: str, market: str, body: dict[str, Any]) -> int:
        self.frames.append((kind, body))
        self._learner.calls.append(f"publish {kind}")
        return len(self.frames)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [body for name, body in self.frames if name == kind]


class Rig:
    """One pipeline with real learner, scripted feed and store in memory."""

    def __init__(
        self,
        items: Sequence[FeedItem],
        store: InMemoryStore | None = None,
        die_at: Sequence[str] = (),
        every: int = 1000,
    ) -> None:
        self.store = store or InMemoryStore()
        self.feed = ScriptedFeed(items)
        self.learner = InProcessLearner(CONFIG, die_at)
        self.frames = Frames(self.learner)
        options = PipelineOptions(config={"seed": 0}, backfill=10, checkpoint_every=every)
        self.pipeline = MarketPipeline(self.feed, self.learner, self.store, self.store, self.frames, options)
        self.market = FollowedMarket(self.pipeline)

    async def learned(self, index: int) -> None:
        """Wait until the candle with this index is stored with its step."""
        await eventually(lambda: any(open_time == at(index) for _, open_time in self.store.stored_steps), 30)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    task = asyncio.create_task(rig.pipeline.run())
    try:
        async with asyncio.timeout(30):
            yield rig
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def candles(first: int, count: int, **changes: Any) -> list[Candle]:
    return [make_candle(index, **changes) for index in range(first, first + count)]


def numbers(steps: Sequence[Step]) -> list[Step]:
    """Leave out what the clock decides."""
    return [replace(step, infer_ms=None, train_ms=None, lag_ms=None, queue_depth=None) for step in steps]


async def never_stopped(items: Sequence[FeedItem], last: int) -> tuple[InMemoryStore, Learner]:
    async with running(Rig(items)) as rig:
        await rig.learned(last)
    return rig.store, rig.learner.learner


async def test_failures_45_the_garbage_collector_takes_no_task() -> None:
    """The loop refers to its tasks weakly: every one of ours is held by a TaskGroup."""
    collecting = True

    async def collect() -> None:
        while collecting:
            gc.collect()
            await asyncio.sleep(0)

    gc.freeze()  # only what is made from here on is looked at
    collector = asyncio.create_task(collect())
    async with running(Rig(candles(0, 8), every=3)) as rig:
        await rig.learned(7)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert {f"{what} {MARKET}" for what in ("learner", "record", "ingest", "learn")} <= names
    collecting = False
    await collector
    gc.unfreeze()


async def test_each_candle_is_predicted_published_then_learned_then_published() -> None:
    async with running(Rig(candles(0, 3))) as rig:
        await rig.learned(2)
    one_candle = ["predict {}", "publish prediction", "learn {}", "publish step"]
    assert rig.learner.calls == [call.format(index) for index in range(3) for call in one_candle]


async def test_the_frames_say_what_the_database_says() -> None:
    async with running(Rig(candles(0, 5))) as rig:
        await rig.learned(4)
    assert [frame["candle"] for frame in rig.frames.of("prediction")] == await rig.store.candles(MARKET, None, None, 99)
    told = [frame["prediction"] for frame in rig.frames.of("prediction")]
    assert told == await rig.store.predictions(MARKET, None, None, 99)
    steps = await rig.store.steps(MARKET, None, None, 99)
    assert [frame["step"] for frame in rig.frames.of("step")] == [replace(step, trend_correct=None) for step in steps]
    assert [step.trend_correct is not None for step in steps] == [False, True, True, False, False]


@pytest.mark.parametrize("die_at", [["predict 2"], ["learn 2"], ["predict 0"], ["learn 1", "predict 2", "learn 3"]])
async def test_a_learner_that_dies_costs_no_candle_and_doubles_none(die_at: list[str]) -> None:
    expected, _ = await never_stopped(candles(0, 5), 4)
    async with running(Rig(candles(0, 5), die_at=die_at)) as rig:
        await rig.learned(4)
    assert len(rig.frames.of("prediction")) == len(rig.frames.of("step")) == 5
    assert numbers([*rig.store.stored_steps.values()]) == numbers([*expected.stored_steps.values()])
    assert [event["kind"] for event in rig.frames.of("event")] == ["restart"] * len(die_at)


@pytest.mark.parametrize("stopped_after", [1, 3, 4, 7, 8])
async def test_a_service_killed_at_any_candle_goes_on_to_the_last_bit(stopped_after: int) -> None:
    expected, learner = await never_stopped(candles(0, 12), 11)
    async with running(Rig(candles(0, stopped_after + 1), every=4)) as first:
        await first.learned(stopped_after)
    async with running(Rig(candles(0, 12), store=first.store, every=4)) as second:
        await second.learned(11)
    assert second.learner.learner.weights_hash() == learner.weights_hash()
    assert second.store.stored_predictions == expected.stored_predictions
    assert numbers([*second.store.stored_steps.values()]) == numbers([*expected.stored_steps.values()])


async def test_what_a_killed_service_had_not_stored_is_asked_from_the_exchange_again() -> None:
    async with running(Rig(candles(0, 6))) as first:
        await first.learned(5)
    for index in (4, 5):
        del first.store.stored_candles[MARKET, at(index)]
        del first.store.stored_steps[1, at(index)]
        del first.store.stored_predictions[1, at(index + 1)]
    async with running(Rig(candles(0, 6), store=first.store)) as second:
        await second.learned(5)
    assert second.feed.asked == [(at(3), 10, [at(0), at(1), at(2), at(3)])]
    assert len(second.store.stored_candles) == len(second.store.stored_steps) == 6


async def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used() -> None:
    expected, learner = await never_stopped(candles(0, 12), 11)
    async with running(Rig(candles(0, 9), every=4)) as first:
        await first.learned(8)
    newest = max(first.store.stored_checkpoints[1])
    damaged = replace(first.store.stored_checkpoints[1][newest], data=b"nonsense")
    first.store.stored_checkpoints[1][newest] = damaged
    async with running(Rig(candles(0, 12), store=first.store)) as second:
        await second.learned(11)
    assert (1, newest) in second.store.aside
    assert second.learner.learner.weights_hash() == learner.weights_hash()
    assert second.store.stored_predictions == expected.stored_predictions


async def test_a_correction_is_stored_and_told_but_not_learned_and_survives_a_kill() -> None:
    corrected = make_candle(3, volume=99.0)
    items: list[FeedItem] = [*candles(0, 6), Correction(corrected), *candles(6, 3)]
    _, learner = await never_stopped([*candles(0, 9)], 8)
    async with running(Rig(items)) as first:
        await first.learned(8)
    assert first.store.stored_candles[MARKET, at(3)].volume == 99.0
    assert [event["kind"] for event in first.frames.of("event")] == ["correction"]
    assert first.learner.learner.weights_hash() == learner.weights_hash()
    async with running(Rig([*items, *candles(9, 1)], store=first.store)) as second:
        await second.learned(9)
    _, longer = await never_stopped(candles(0, 10), 9)
    assert second.learner.learner.weights_hash() == longer.weights_hash()


async def test_what_the_learner_tells_of_a_candle_is_one_event_however_often_it_is_learned() -> None:
    """Without a checkpoint the second service learns every candle again."""

    def drifting(rig: Rig) -> Rig:
        learn = rig.learner.learn

        async def learn_and_tell(candle: Candle) -> Learned:
            learned = await learn(candle)
            return replace(learned, events=(LearnerEvent("drift", {}),) if candle.open_time == at(3) else ())

        rig.learner.learn = learn_and_tell  # type: ignore[method-assign]
        return rig

    async with running(drifting(Rig(candles(0, 6)))) as first:
        await first.learned(5)
    async with running(drifting(Rig(candles(0, 8), store=first.store))) as second:
        await second.learned(7)
    drifts = [event for event in first.store.stored_events if event.kind == "drift"]
    assert {event.at for event in drifts} == {at(4)}


async def test_gaps_and_notices_become_events() -> None:
    items: list[FeedItem] = [
        *candles(0, 2),
        Notice("stale", {"age_ms": 5000}),
        Notice("recovered", {}),
        Gap(MARKET, at(2), at(5), "the exchange has none"),
        *candles(5, 2),
    ]
    async with running(Rig(items)) as rig:
        await rig.learned(6)
    assert [event.kind for event in rig.store.stored_events] == ["stale", "recovered", "gap"]
    steps = await rig.store.steps(MARKET, None, None, 99)
    assert [step.skipped for step in steps] == ["warmup", None, "gap", None]
    assert steps[2].loss is None


async def test_predictions_go_on_while_the_database_is_away() -> None:
    rig = Rig([])
    async with running(rig):
        await eventually(lambda: rig.feed.asked)
        rig.store.unavailable = "connection refused"
        for candle in candles(0, 5):
            rig.feed.say(candle)
        await eventually(lambda: len(rig.frames.of("step")) == 5 and not rig.market.status().database_ok)
        assert not rig.store.stored_steps
        rig.store.unavailable = None
        await rig.learned(4)
    assert len(rig.store.stored_candles) == 5


async def test_a_market_is_live_only_when_its_prediction_is_about_the_next_candle() -> None:
    rig = Rig(candles(0, 2, source="backfill"))
    rig.feed.status = "backfilling"
    assert rig.market.status().phase == "starting"
    async with running(rig):
        await rig.learned(1)
        assert rig.market.status().phase == "warming_up"
        rig.feed.status = "live"
        rig.feed.say(make_candle(2, source="backfill"))
        await eventually(lambda: rig.market.status().phase == "live")
        rig.feed.status = "stale"
        assert rig.market.status().phase == "stale"


async def test_only_live_candles_have_a_lag() -> None:
    rig = Rig([make_candle(0, source="backfill"), make_candle(1)])
    async with running(rig):
        await rig.learned(1)
        await rig.market.checkpoint()
    for open_time in (at(0), at(1)):
        assert (rig.store.stored_steps[1, open_time].lag_ms is None) == (open_time == at(0))
    del rig.store.stored_checkpoints[1]
    async with running(Rig([], store=rig.store)) as again:
        await eventually(lambda: len(again.frames.of("step")) == 2)
    assert [frame["step"].lag_ms for frame in again.frames.of("step")] == [None, None], "replayed, not live"


async def test_corrections_in_a_row_cost_one_checkpoint() -> None:
    rig = Rig([*candles(0, 5), *(Correction(make_candle(index, volume=50.0)) for index in range(4)), make_candle(5)])
    async with running(rig):
        await rig.learned(5)
    assert list(rig.store.stored_checkpoints[1]) == [at(4)]
    assert [rig.store.stored_candles[MARKET, at(index)].volume for index in range(4)] == [50.0] * 4


async def test_operating_while_the_backlog_is_full_is_refused_instead_of_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig([])
    monkeypatch.setattr(rig.pipeline.recorder, "_limit", 2)
    async with running(rig):
        await eventually(lambda: rig.feed.asked)
        rig.store.unavailable = "connection refused"
        for candle in candles(0, 4):
            rig.feed.say(candle)
        await eventually(lambda: rig.market.status().phase == "stale")
        assert "backlog is full" in rig.market.status().reason
        with pytest.raises(StoreUnavailable):
            await rig.market.pause()
        rig.store.unavailable = None
        await rig.learned(3)
        assert len(rig.store.stored_candles) == 4


async def test_pausing_scores_without_learning_and_survives_a_restart() -> None:
    rig = Rig(candles(0, 4))
    async with running(rig):
        await rig.learned(3)
        await rig.market.pause()
        rig.feed.say(make_candle(4))
        await rig.learned(4)
        assert rig.market.status().paused
    async with running(Rig(candles(0, 6), store=rig.store)) as again:
        await again.learned(5)
        assert again.market.status().paused
        await again.market.resume()
        again.feed.say(make_candle(6))
        await again.learned(6)
    steps = await rig.store.steps(MARKET, None, None, 99)
    assert [step.skipped for step in steps[3:]] == [None, "paused", "paused", None]


async def test_a_pause_that_was_answered_is_stored() -> None:
    rig = Rig(candles(0, 4))
    async with running(rig):
        await rig.learned(3)
        for operate, paused in ((rig.market.pause, True), (rig.market.resume, False)):
            await operate()
            assert rig.pipeline.current_run is not None
            newest = await rig.store.latest(rig.pipeline.current_run)
            assert newest is not None
            assert load_state(newest.data)["paused"] is paused


async def test_a_busy_learner_is_not_called_a_dead_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.market.TURN_SECONDS", 0.01)
    rig = Rig(candles(0, 2))
    async with running(rig):
        await rig.learned(1)
        async with rig.pipeline.turn:
            with pytest.raises(LearnerUnavailable, match="busy"):
                await rig.market.pause()


async def test_a_rollback_takes_the_earlier_weights_on_an_unbroken_window() -> None:
    rig = Rig(candles(0, 6))
    async with running(rig):
        await rig.learned(3)
        await rig.learned(5)
        earlier = await rig.market.checkpoint()
        rig.feed.say(make_candle(6))
        await rig.learned(6)
        await rig.market.checkpoint()
        rig.feed.say(make_candle(7))
        await rig.learned(7)
        assert await rig.market.rollback() == earlier
        assert rig.learner.learner.step == earlier["step"]
        rig.feed.say(make_candle(8))
        await rig.learned(8)
    steps = await rig.store.steps(MARKET, None, None, 99)
    assert steps[-1].skipped is None
    assert steps[-1].step == earlier["step"] + 1
    assert "rollback" in [event.kind for event in rig.store.stored_events]


async def test_a_second_rollback_goes_further_back_not_forward() -> None:
    rig = Rig(candles(0, 5))
    saved = []
    async with running(rig):
        for index in range(4, 8):
            rig.feed.say(make_candle(index)) if index > 4 else None
            await rig.learned(index)
            saved.append(await rig.market.checkpoint())
        assert await rig.market.rollback() == saved[2]
        assert await rig.market.rollback() == saved[1]
        assert await rig.market.rollback() == saved[0]
        with pytest.raises(LivewickError, match="no earlier checkpoint"):
            await rig.market.rollback()


async def test_a_rollback_without_an_earlier_checkpoint_is_refused() -> None:
    async with running(Rig(candles(0, 2))) as rig:
        await rig.learned(1)
        with pytest.raises(LivewickError, match="no earlier checkpoint"):
            await rig.market.rollback()


async def test_closing_saves_a_checkpoint_and_everything_recorded() -> None:
    async with running(Rig(candles(0, 3))) as rig:
        await rig.learned(2)
        await rig.pipeline.close()
        assert max(rig.store.stored_checkpoints[1]) == at(2)
        assert rig.market.status().phase == "stopped"
