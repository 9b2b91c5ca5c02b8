"""FollowedMarket: one pipeline as the API sees and operates it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from models.candle import Candle
from models.records import Prediction, ScoreWindow
from service.clock import now_ms
from service.pipeline import MarketPipeline
from service.ports import Checkpoint, LearnerUnavailable, LivewickError, MarketStatus, Phase, Run, StoreUnavailable

BEHIND_CANDLES = 5
"""A learner further behind the feed than this is not live: its prediction is about the past."""

WALK_CANDLES = 20_000
"""The market stands still while a rollback walks through the candles since: a few minutes at most."""

TURN_SECONDS = 10.0
DATABASE_SECONDS = 5.0


class FollowedMarket:
    """A market with a learner here. Operations wait for their turn between two candles."""

    def __init__(self, pipeline: MarketPipeline) -> None:
        self._pipeline = pipeline
        self._rolling_back = False
        self.market = pipeline.market
        self.interval_ms = pipeline.interval_ms

    def prediction(self) -> Prediction | None:
        return self._pipeline.latest_prediction

    def short_score(self) -> dict[str, Any] | None:
        return self._pipeline.learner.short_score

    def status(self) -> MarketStatus:
        feed = self._pipeline.feed.state()
        phase, reason = self._phase()
        total = None if feed.backfill_total is None else self._pipeline.to_replay + feed.backfill_total
        checkpoint = self._pipeline.newest_checkpoint
        return MarketStatus(
            market=self.market,
            phase=phase,
            reason=reason,
            feed=feed,
            warmup_done=self._pipeline.taken if total is None else min(self._pipeline.taken, total),
            warmup_total=total,
            learner_alive=self._pipeline.learner.alive,
            learner_restarts=self._pipeline.learner.restarts,
            paused=self._pipeline.paused,
            database_ok=self._pipeline.recorder.database_ok,
            backlog=self._pipeline.recorder.backlog,
            queue_depth=self._pipeline.queue.qsize(),
            last_step=self._pipeline.last_step,
            checkpoint_open_time=checkpoint.open_time if checkpoint else None,
            checkpoint_age_ms=now_ms() - checkpoint.created_at if checkpoint else None,
        )

    def _phase(self) -> tuple[Phase, str]:
        pipeline = self._pipeline
        feed = pipeline.feed.state()
        if pipeline.stopped:
            return "stopped", "the service is stopping"
        if pipeline.recorder.full:
            return "stale", "the database is away and the backlog is full: no more candles are taken"
        if self._rolling_back:
            return "stale", "a rollback is under way"
        if not pipeline.learner.alive:
            return "starting", "the learner is starting"
        if pipeline.last_learned is None or not pipeline.caught_up or feed.status in ("starting", "backfilling"):
            return "warming_up", "learning from history"
        behind = (feed.last_open_time or 0) - pipeline.last_learned.open_time
        if behind > BEHIND_CANDLES * self.interval_ms:
            return "stale", f"the learner is {behind // self.interval_ms} candles behind the feed"
        if feed.status != "live":
            return "stale", f"the feed is {feed.status}: {feed.detail or 'no new candle'}"
        return "live", ""

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        return await self._pipeline.learner.preview(candles)

    async def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]:
        return await self._pipeline.learner.score(window, live)

    async def describe(self) -> dict[str, Any]:
        """Return the learner's description with the configuration of the run."""
        current = self._pipeline.current_run
        run = {"id": current.id, "started_at": current.started_at} if current else None
        return {**await self._pipeline.learner.describe(), "run": run, "configuration": self._pipeline.options.config}

    async def pause(self) -> None:
        async with self._turn() as pipeline:
            await pipeline.learner.pause()
            pipeline.paused = True
            await pipeline.take_checkpoint(pinned=True)
        await self._drained("the learner is paused; the database is away and does not know it yet")

    async def resume(self) -> None:
        async with self._turn() as pipeline:
            await pipeline.learner.resume()
            pipeline.paused = False
            await pipeline.take_checkpoint(pinned=True)
        await self._drained("the learner trains again; the database is away and does not know it yet")

    async def checkpoint(self) -> dict[str, Any]:
        async with self._turn() as pipeline:
            await pipeline.take_checkpoint()
            taken = pipeline.newest_checkpoint
            if taken is None:
                raise LivewickError("nothing was learned yet: there is nothing to save")
        await self._drained("the database is away: the checkpoint is kept and saved when it is back")
        return _summary(taken)

    async def rollback(self) -> dict[str, Any]:
        """Take the checkpoint before the newest, walk it through the candles since without learning, and save.

        What was saved from that checkpoint on is set aside, so that the next rollback goes further back.
        """
        async with self._turn() as pipeline:
            run, newest = pipeline.current_run, pipeline.newest_checkpoint
            target = await pipeline.checkpoints.previous(run, newest.open_time) if run and newest else None
            if run is None or target is None:
                raise LivewickError("there is no earlier checkpoint to go back to")
            since = await self._stored_after(target)
            self._rolling_back = True
            try:
                await pipeline.learner.load(target.data)
                await self._walk(since)
                await pipeline.take_checkpoint(pinned=True)
            finally:
                self._rolling_back = False
            saved = pipeline.newest_checkpoint
            await pipeline.tell("rollback", _summary(target))
        if saved is not None:
            await self._set_aside(run, target, saved)
        return _summary(target)

    async def _walk(self, candles: Sequence[Candle]) -> None:
        """Show the learner the candles without learning: its window then has no hole."""
        pipeline = self._pipeline
        await pipeline.insist(pipeline.learner.pause)
        for candle in candles:
            await pipeline.insist(pipeline.learner.predict, candle)
            await pipeline.insist(pipeline.learner.learn, candle)
        if not pipeline.paused:
            await pipeline.insist(pipeline.learner.resume)

    async def _stored_after(self, target: Checkpoint) -> list[Candle]:
        """Read what was learned since a checkpoint. Raises before anything changed."""
        newest = self._pipeline.last_learned
        age = (newest.open_time - target.open_time) // self.interval_ms if newest else 0
        if age > WALK_CANDLES:
            raise LivewickError(
                f"the earlier checkpoint is {age} candles old; at most {WALK_CANDLES} can be walked through"
            )
        await self._drained("the database is away: it does not say what was learned since")
        start = target.open_time + self.interval_ms
        return await self._pipeline.store.candles(self.market, start, None, WALK_CANDLES)

    async def _drained(self, otherwise: str) -> None:
        """Wait until everything is stored; raises StoreUnavailable, saying ``otherwise``, when that takes too long."""
        try:
            async with asyncio.timeout(DATABASE_SECONDS):
                await self._pipeline.recorder.drained()
        except TimeoutError:
            raise StoreUnavailable(otherwise) from None

    async def _set_aside(self, run: Run, target: Checkpoint, saved: Checkpoint) -> None:
        """Never offer again what a rollback went over, nor its target: that lives on in what the rollback saved."""
        pipeline = self._pipeline
        await pipeline.recorder.drained()
        while between := await pipeline.checkpoints.previous(run, saved.open_time):
            if between.open_time < target.open_time:
                return
            await pipeline.checkpoints.set_aside(run, between, "rolled back over")

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[MarketPipeline]:
        """Wait for a place between two candles.

        Raises StoreUnavailable while a full backlog holds everything up, LearnerUnavailable when the learner is busy.
        """
        refusal = "the database is away and the backlog is full; the learner waits for it"
        if self._pipeline.recorder.full:
            raise StoreUnavailable(refusal)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._pipeline.turn.acquire()
        except TimeoutError:
            if self._pipeline.recorder.full:
                raise StoreUnavailable(refusal) from None
            busy = "a rollback is under way" if self._rolling_back else "the learner is busy"
            raise LearnerUnavailable(busy) from None
        try:
            yield self._pipeline
        finally:
            self._pipeline.turn.release()


def _summary(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"open_time": checkpoint.open_time, "step": checkpoint.step}
