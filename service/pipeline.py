"""One market's pipeline: take a candle, predict, publish, learn, publish, record; and the tasks that do it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, TypeVarTuple

import structlog

from models.candle import Candle
from models.records import Learned, Prediction, Step
from service.clock import now_ms
from service.ports import (
    RETRY_SECONDS,
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
    Notice,
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
RECENT_CANDLES = 120
"""How far back the exchange's corrections are looked for after a restart."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """``config`` decides which run this is; ``backfill`` and ``checkpoint_every`` are in candles.

    ``pretrained`` is the state a new run begins with, None for an untrained learner.
    """

    config: dict[str, Any]
    pretrained: bytes | None = None
    backfill: int = 3600
    checkpoint_every: int = 300
    candle_queue: int = 1000


class MarketPipeline:
    """Everything that happens to one market, from the feed to the subscribers and the database."""

    def __init__(
        self,
        feed: CandleFeed,
        learner: LearnerHandle,
        store: RecordStore,
        checkpoints: CheckpointStore,
        publisher: Publisher,
        options: PipelineOptions,
    ) -> None:
        self.market = feed.market
        self.interval_ms = feed.interval_ms
        self.feed = feed
        self.learner = learner
        learner.on_restart = self.tell_restart
        self.store = store
        self.checkpoints = checkpoints
        self._publisher = publisher
        self.options = options
        self.recorder = Recorder(store, checkpoints)
        # Full: the feed waits. A candle is never dropped, because a missing one would spoil the window.
        self.queue: asyncio.Queue[FeedItem] = asyncio.Queue(maxsize=options.candle_queue)
        # Held while a candle, a pause or a rollback changes the learner: these never interleave.
        self.turn = asyncio.Lock()
        self.current_run: Run | None = None
        self.latest_prediction: Prediction | None = None
        self.last_step: Step | None = None
        self.last_learned: Candle | None = None
        self.newest_checkpoint: Checkpoint | None = None
        self._since_checkpoint = 0
        self.taken = 0
        self.to_replay = 0
        self.caught_up = False
        self.paused = False
        self.stopped = False

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Recover, then follow the market until cancelled; a last checkpoint is saved on the way out."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.learner.run(), name=f"learner {self.market}")
                self.current_run = await self.recorder.insist(
                    self.store.open_run, self.market, self.options.config, now_ms()
                )
                group.create_task(self.recorder.run(self.current_run), name=f"record {self.market}")
                last = await self._recover(self.current_run)
                if last is not None:
                    await self.tell("restart", {"what": "service", "resumed_after": last})
                group.create_task(self._ingest(last), name=f"ingest {self.market}")
                group.create_task(self._learn(), name=f"learn {self.market}")
        finally:
            self.stopped = True

    async def close(self, seconds: float = 3.0) -> None:
        """Before cancelling ``run``: save a checkpoint and everything recorded, within ``seconds``."""
        if self.current_run is None:
            self.stopped = True
            return
        try:
            async with asyncio.timeout(seconds):
                async with self.turn:
                    if self._since_checkpoint and self.learner.alive:
                        await self.take_checkpoint()
                    self.stopped = True
                await self.recorder.drained()
        except (TimeoutError, LearnerUnavailable):
            log.warning("stopped before everything was stored; the next start catches up", market=self.market)

    async def _recover(self, run: Run) -> int | None:
        """Load the newest good checkpoint and replay the stored candles since; returns the last candle's open_time."""
        last = await self._load_checkpoint(run)
        if last is None:
            first = await self.recorder.insist(self.store.steps, self.market, None, None, 1)
            if not first:
                return None
            start = first[0].open_time
        else:
            start = last + self.interval_ms
        return await self._replay(start, last)

    async def _load_checkpoint(self, run: Run) -> int | None:
        while True:
            checkpoint = await self.recorder.insist(self.checkpoints.latest, run)
            try:
                description = await self.learner.load(checkpoint.data if checkpoint else self.options.pretrained)
            except CheckpointRefused as error:
                if checkpoint is None:
                    raise
                log.warning(
                    "checkpoint refused, trying the one before", open_time=checkpoint.open_time, reason=str(error)
                )
                await self.recorder.insist(self.checkpoints.set_aside, run, checkpoint, str(error))
                continue
            self.newest_checkpoint = checkpoint
            self.paused = bool(description.get("paused", False))
            log.info("learner ready", market=self.market, resumed_from=checkpoint.open_time if checkpoint else None)
            return checkpoint.open_time if checkpoint else None

    async def _replay(self, start: int, last: int | None) -> int | None:
        while True:
            page = await self.recorder.insist(self.store.candles, self.market, start, None, REPLAY_PAGE)
            if not page:
                return last
            self.to_replay += len(page)
            for candle in page:
                await self._take(candle)
            last = page[-1].open_time
            start = last + self.interval_ms

    # --- the life of a candle ---------------------------------------------------------------------------------------

    async def _ingest(self, after: int | None) -> None:
        stored = await self.recorder.insist(self.store.last_candles, self.market, RECENT_CANDLES)
        recent = [candle for candle in stored if after is not None and candle.open_time <= after]
        async for item in self.feed.stream(after, self.options.backfill, recent):
            await self.queue.put(item)

    async def _learn(self) -> None:
        while True:
            match await self.queue.get():
                case Candle() as candle:
                    await self._take(candle, live=candle.source == "live")
                    self.caught_up = self.caught_up or (self.queue.empty() and self.feed.state().status == "live")
                case Correction(candle):
                    await self._correct(candle)
                case Gap() as gap:
                    detail = {"start": gap.start, "end": gap.end, "reason": gap.reason}
                    await self.tell("gap", detail)
                case Notice(kind, detail):
                    await self.tell(kind, detail)

    async def _take(self, candle: Candle, live: bool = False) -> None:
        """Take a candle: predict, publish, learn, publish, record. Only a ``live`` one has a lag worth telling."""
        async with self.turn:
            prediction = await self.insist(self.learner.predict, candle)
            lag_ms = float(now_ms() - candle.open_time - self.interval_ms) if live else None
            self._publish_prediction(candle, prediction)
            learned = await self.insist(self.learner.learn, candle)
            step = replace(learned.step, lag_ms=lag_ms, queue_depth=self.queue.qsize())
            self._publish_step(step)
            await self._record(candle, prediction, step, learned)
            self._since_checkpoint += 1
            if self._since_checkpoint >= self.options.checkpoint_every:
                await self.take_checkpoint()

    def _publish_prediction(self, candle: Candle, prediction: Prediction) -> None:
        self.taken += 1
        self.latest_prediction = prediction
        self.last_learned = candle
        self._publisher.publish("prediction", self.market, {"candle": candle, "prediction": prediction})

    def _publish_step(self, step: Step) -> None:
        self.last_step = step
        self._publisher.publish("step", self.market, {"step": step, "score": self.learner.short_score})

    async def _record(self, candle: Candle, prediction: Prediction, step: Step, learned: Learned) -> None:
        # Timed by the candle, not the clock: made again in a recovery, it is the same event and stored once.
        events = [self._event(event.kind, event.detail, step.open_time + self.interval_ms) for event in learned.events]
        trends = [learned.trend] if learned.trend else []
        await self.recorder.put(
            RecordBatch(candles=[candle], predictions=[prediction], steps=[step], trends=trends, events=events)
        )

    async def _correct(self, candle: Candle) -> None:
        """Store what the exchange says now. A checkpoint goes first: a recovery must replay what was learned."""
        async with self.turn:
            if self._since_checkpoint:
                await self.take_checkpoint()
            self.recorder.pin_newest_checkpoint()
            detail = {"open_time": candle.open_time, "close": candle.close}
            await self.recorder.put(RecordBatch(corrections=[candle], events=[self._event("correction", detail)]))

    async def tell(self, kind: EventKind, detail: dict[str, Any]) -> None:
        await self.recorder.put(RecordBatch(events=[self._event(kind, detail)]))

    def _event(self, kind: EventKind, detail: dict[str, Any], at: int | None = None) -> Event:
        log.info("event", market=self.market, kind=kind, **detail)
        event = Event(self.market, kind, detail, now_ms() if at is None else at)
        self._publisher.publish("event", self.market, {"kind": kind, "detail": detail, "at": event.at})
        return event

    def tell_restart(self, reason: str) -> None:
        """Tell subscribers that the learner's process died and is being restored."""
        detail = {"what": "learner", "reason": reason, "restarts": self.learner.restarts}
        self.recorder.put_soon(RecordBatch(events=[self._event("restart", detail)]))

    def tell_simulated(self, reason: str) -> None:
        """Tell subscribers that this market is not a real one."""
        self.recorder.put_soon(RecordBatch(events=[self._event("simulated", {"reason": reason})]))

    async def take_checkpoint(self, pinned: bool = False) -> None:
        """Save the learner's state behind everything recorded so far; hold ``turn``.

        ``pinned``: a recovery from an earlier checkpoint would go another way (a pause, a rollback).
        """
        open_time, step, data = await self.insist(self.learner.checkpoint)
        if open_time is None:
            return
        score = self.learner.short_score or {}
        self.newest_checkpoint = Checkpoint(open_time, step, now_ms(), score.get("log_loss"), data)
        self._since_checkpoint = 0
        await self.recorder.put(self.newest_checkpoint)
        if pinned:
            self.recorder.pin_newest_checkpoint()

    async def insist(self, call: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Make the call until the learner answers it; while it is being restored, wait."""
        while True:
            try:
                return await call(*args)
            except LearnerUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                await self.learner.ready()
