"""One market's pipeline: take a candle, predict, publish, learn, publish, record. The only file with tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, TypeVarTuple

import structlog

from models.candle import Candle
from models.records import Learned, Prediction, Step
from service.ports import (
    CandleFeed,
    Checkpoint,
    CheckpointRefused,
    CheckpointStore,
    Correction,
    Event,
    EventKind,
    FeedItem,
    Gap,
    LearnerHandle,
    LearnerUnavailable,
    LivewickError,
    MarketStatus,
    Notice,
    Phase,
    Publisher,
    RecordBatch,
    RecordStore,
    Run,
)
from service.recorder import Recorder

log = structlog.get_logger(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")

REPLAY_PAGE = 1000
RETRY_SECONDS = 0.02
"""Pause before a refused call is made again: a loop without one could keep the event loop to itself."""

BEHIND_CANDLES = 5
"""A learner further behind the feed than this is not live: its prediction is about the past."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """``config`` decides which run this is; ``backfill`` and ``checkpoint_every`` are in candles."""

    config: dict[str, Any]
    backfill: int = 3600
    checkpoint_every: int = 300
    candle_queue: int = 1000


class MarketPipeline:
    """Everything that happens to one market, from the feed to the subscribers and the database."""

    def __init__(
        self,
        feed: CandleFeed,
        worker: LearnerHandle,
        store: RecordStore,
        checkpoints: CheckpointStore,
        publisher: Publisher,
        options: PipelineOptions,
    ) -> None:
        self.market = feed.market
        self.interval_ms = feed.interval_ms
        self._feed = feed
        self._worker = worker
        self._store = store
        self._checkpoints = checkpoints
        self._publisher = publisher
        self._options = options
        self._recorder = Recorder(store, checkpoints)
        # Full: the feed waits. A candle is never dropped, because a missing one would spoil the window.
        self._candles: asyncio.Queue[FeedItem] = asyncio.Queue(maxsize=options.candle_queue)
        # Held while a candle, a pause or a rollback changes the learner: these never interleave.
        self._turn = asyncio.Lock()
        self._run: Run | None = None
        self._prediction: Prediction | None = None
        self._last_step: Step | None = None
        self._last_learned: Candle | None = None
        self._checkpoint: Checkpoint | None = None
        self._since_checkpoint = 0
        self._taken = 0
        self._to_replay = 0
        self._caught_up = False
        self._paused = False
        self._stopped = False

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Recover, then follow the market until cancelled; a last checkpoint is saved on the way out."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._worker.run(), name=f"learner {self.market}")
                self._run = await self._recorder.insist(
                    self._store.open_run, self.market, self._options.config, _now_ms()
                )
                group.create_task(self._recorder.run(self._run), name=f"record {self.market}")
                last = await self._recover(self._run)
                group.create_task(self._ingest(last), name=f"ingest {self.market}")
                group.create_task(self._learn(), name=f"learn {self.market}")
        finally:
            self._stopped = True

    async def close(self, seconds: float = 4.0) -> None:
        """Before cancelling ``run``: save a checkpoint and everything recorded, within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                async with self._turn:
                    if self._since_checkpoint and self._worker.alive:
                        await self._take_checkpoint()
                    self._stopped = True
                await self._recorder.drained()
        except (TimeoutError, LearnerUnavailable):
            log.warning("stopped before everything was stored; the next start catches up", market=self.market)

    async def _recover(self, run: Run) -> int | None:
        """Load the newest good checkpoint and replay the stored candles since; returns the last candle's open_time."""
        last = await self._load_checkpoint(run)
        if last is None:
            first = await self._recorder.insist(self._store.steps, self.market, None, None, 1)
            if not first:
                return None
            start = first[0].open_time
        else:
            start = last + self.interval_ms
        return await self._replay(start, last)

    async def _load_checkpoint(self, run: Run) -> int | None:
        while True:
            checkpoint = await self._recorder.insist(self._checkpoints.latest, run)
            try:
                description = await self._worker.load(checkpoint.data if checkpoint else None)
            except CheckpointRefused as error:
                if checkpoint is None:
                    raise
                log.warning(
                    "checkpoint refused, trying the one before", open_time=checkpoint.open_time, reason=str(error)
                )
                await self._recorder.insist(self._checkpoints.set_aside, run, checkpoint, str(error))
                continue
            self._checkpoint = checkpoint
            self._paused = bool(description.get("paused", False))
            log.info("learner ready", market=self.market, resumed_from=checkpoint.open_time if checkpoint else None)
            return checkpoint.open_time if checkpoint else None

    async def _replay(self, start: int, last: int | None) -> int | None:
        while True:
            page = await self._recorder.insist(self._store.candles, self.market, start, None, REPLAY_PAGE)
            if not page:
                return last
            self._to_replay += len(page)
            for candle in page:
                await self._take(candle)
            last = page[-1].open_time
            start = last + self.interval_ms

    # --- the life of a candle ---------------------------------------------------------------------------------------

    async def _ingest(self, after: int | None) -> None:
        async for item in self._feed.stream(after, self._options.backfill):
            await self._candles.put(item)

    async def _learn(self) -> None:
        while True:
            match await self._candles.get():
                case Candle() as candle:
                    await self._take(candle)
                    self._caught_up = self._caught_up or candle.source == "live"
                case Correction(candle):
                    await self._correct(candle)
                case Gap() as gap:
                    detail = {"start": gap.start, "end": gap.end, "reason": gap.reason}
                    await self._tell("gap", detail)
                case Notice(kind, detail):
                    await self._tell(kind, detail)

    async def _take(self, candle: Candle) -> None:
        """Take a candle: predict, publish, learn, publish, record."""
        async with self._turn:
            prediction = await self._insist(self._worker.predict, candle)
            lag_ms = float(_now_ms() - candle.open_time - self.interval_ms) if candle.source == "live" else None
            self._publish_prediction(candle, prediction)
            learned = await self._insist(self._worker.learn, candle)
            step = replace(learned.step, lag_ms=lag_ms, queue_depth=self._candles.qsize())
            self._publish_step(step)
            await self._record(candle, prediction, step, learned)
            self._since_checkpoint += 1
            if self._since_checkpoint >= self._options.checkpoint_every:
                await self._take_checkpoint()

    def _publish_prediction(self, candle: Candle, prediction: Prediction) -> None:
        self._taken += 1
        self._prediction = prediction
        self._last_learned = candle
        self._publisher.publish("prediction", self.market, {"candle": candle, "prediction": prediction})

    def _publish_step(self, step: Step) -> None:
        self._last_step = step
        self._publisher.publish("step", self.market, {"step": step, "score": self._worker.short_score})

    async def _record(self, candle: Candle, prediction: Prediction, step: Step, learned: Learned) -> None:
        events = [self._event(event.kind, event.detail) for event in learned.events]
        trends = [learned.trend] if learned.trend else []
        await self._recorder.put(
            RecordBatch(candles=[candle], predictions=[prediction], steps=[step], trends=trends, events=events)
        )

    async def _correct(self, candle: Candle) -> None:
        """Store what the exchange says now. A checkpoint goes first: a recovery must replay what was learned."""
        async with self._turn:
            await self._take_checkpoint()
            detail = {"open_time": candle.open_time, "close": candle.close}
            await self._recorder.put(RecordBatch(corrections=[candle], events=[self._event("correction", detail)]))

    async def _tell(self, kind: EventKind, detail: dict[str, Any]) -> None:
        await self._recorder.put(RecordBatch(events=[self._event(kind, detail)]))

    def _event(self, kind: EventKind, detail: dict[str, Any]) -> Event:
        log.info("event", market=self.market, kind=kind, **detail)
        event = Event(self.market, kind, detail, _now_ms())
        self._publisher.publish("event", self.market, {"kind": kind, "detail": detail, "at": event.at})
        return event

    def tell_restart(self, reason: str) -> None:
        """Tell subscribers that the learner's process died and is being restored."""
        detail = {"what": "learner", "reason": reason, "restarts": self._worker.restarts}
        self._recorder.put_soon(RecordBatch(events=[self._event("restart", detail)]))

    def tell_simulated(self, reason: str) -> None:
        """Tell subscribers that this market is not a real one."""
        self._recorder.put_soon(RecordBatch(events=[self._event("simulated", {"reason": reason})]))

    async def _take_checkpoint(self) -> None:
        open_time, step, data = await self._insist(self._worker.checkpoint)
        if open_time is None:
            return
        score = self._worker.short_score or {}
        self._checkpoint = Checkpoint(open_time, step, _now_ms(), score.get("log_loss"), data)
        self._since_checkpoint = 0
        await self._recorder.put(self._checkpoint)

    async def _insist(self, call: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Make the call until the learner answers it; while it is being restored, wait."""
        while True:
            try:
                return await call(*args)
            except LearnerUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                await self._worker.ready()

    # --- what the API sees ------------------------------------------------------------------------------------------

    def prediction(self) -> Prediction | None:
        return self._prediction

    def short_score(self) -> dict[str, Any] | None:
        return self._worker.short_score

    def status(self) -> MarketStatus:
        feed = self._feed.state()
        phase, reason = self._phase()
        total = None if feed.backfill_total is None else self._to_replay + feed.backfill_total
        checkpoint = self._checkpoint
        return MarketStatus(
            market=self.market,
            phase=phase,
            reason=reason,
            feed=feed,
            warmup_done=self._taken if total is None else min(self._taken, total),
            warmup_total=total,
            learner_alive=self._worker.alive,
            learner_restarts=self._worker.restarts,
            paused=self._paused,
            database_ok=self._recorder.database_ok,
            backlog=self._recorder.backlog,
            queue_depth=self._candles.qsize(),
            last_step=self._last_step,
            checkpoint_open_time=checkpoint.open_time if checkpoint else None,
            checkpoint_age_ms=_now_ms() - checkpoint.created_at if checkpoint else None,
        )

    def _phase(self) -> tuple[Phase, str]:
        feed = self._feed.state()
        if self._stopped:
            return "stopped", "the service is stopping"
        if self._recorder.full:
            return "stale", "the database is away and the backlog is full: no more candles are taken"
        if not self._worker.alive:
            return "starting", "the learner is starting"
        if self._last_learned is None or not self._caught_up or feed.status in ("starting", "backfilling"):
            return "warming_up", "learning from history"
        behind = (feed.last_open_time or 0) - self._last_learned.open_time
        if behind > BEHIND_CANDLES * self.interval_ms:
            return "stale", f"the learner is {behind // self.interval_ms} candles behind the feed"
        if feed.status != "live":
            return "stale", f"the feed is {feed.status}: {feed.detail or 'no new candle'}"
        return "live", ""

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        return await self._worker.preview(candles)

    async def score(self, window: int | None, live: bool) -> dict[str, Any]:
        return await self._worker.score(window, live)

    async def describe(self) -> dict[str, Any]:
        """Return the learner's description with the configuration of the run."""
        run = {"id": self._run.id, "started_at": self._run.started_at} if self._run else None
        return {**await self._worker.describe(), "run": run, "configuration": self._options.config}

    async def pause(self) -> None:
        async with self._turn:
            await self._worker.pause()
            self._paused = True
            await self._take_checkpoint()

    async def resume(self) -> None:
        async with self._turn:
            await self._worker.resume()
            self._paused = False
            await self._take_checkpoint()

    async def checkpoint(self) -> dict[str, Any]:
        async with self._turn:
            await self._take_checkpoint()
            return self._checkpoint_summary()

    async def rollback(self) -> dict[str, Any]:
        """Take the checkpoint before the newest, walk it through the candles since without learning, and save."""
        async with self._turn:
            run, newest = self._run, self._checkpoint
            previous = await self._checkpoints.previous(run, newest.open_time) if run and newest else None
            if previous is None:
                raise LivewickError("there is no earlier checkpoint to go back to")
            await self._recorder.drained()
            await self._worker.load(previous.data)
            await self._walk(previous.open_time + self.interval_ms)
            await self._take_checkpoint()
            detail = {"open_time": previous.open_time, "step": previous.step}
            await self._tell("rollback", detail)
            return detail

    async def _walk(self, start: int) -> None:
        """Show the learner the stored candles from ``start`` on, paused, so that its window has no hole."""
        await self._worker.pause()
        while page := await self._store.candles(self.market, start, None, REPLAY_PAGE):
            for candle in page:
                await self._insist(self._worker.predict, candle)
                await self._insist(self._worker.learn, candle)
            start = page[-1].open_time + self.interval_ms
        if not self._paused:
            await self._worker.resume()

    def _checkpoint_summary(self) -> dict[str, Any]:
        if self._checkpoint is None:
            raise LivewickError("nothing was learned yet: there is nothing to save")
        return {"open_time": self._checkpoint.open_time, "step": self._checkpoint.step}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
