"""FollowedMarket: one pipeline as the API sees and operates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.candle import Candle
from models.records import Prediction
from service.pipeline import MarketPipeline, now_ms
from service.ports import LivewickError, MarketStatus, Phase, StoreUnavailable

BEHIND_CANDLES = 5
"""A learner further behind the feed than this is not live: its prediction is about the past."""


class FollowedMarket:
    """A market with a learner here. Operations wait for their turn between two candles."""

    def __init__(self, pipeline: MarketPipeline) -> None:
        self._pipeline = pipeline
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

    async def score(self, window: int | None, live: bool) -> dict[str, Any]:
        return await self._pipeline.learner.score(window, live)

    async def describe(self) -> dict[str, Any]:
        """Return the learner's description with the configuration of the run."""
        current = self._pipeline.current_run
        run = {"id": current.id, "started_at": current.started_at} if current else None
        return {**await self._pipeline.learner.describe(), "run": run, "configuration": self._pipeline.options.config}

    async def pause(self) -> None:
        async with self._pipeline.turn:
            await self._pipeline.learner.pause()
            self._pipeline.paused = True
            await self._pipeline.take_checkpoint()

    async def resume(self) -> None:
        async with self._pipeline.turn:
            await self._pipeline.learner.resume()
            self._pipeline.paused = False
            await self._pipeline.take_checkpoint()

    async def checkpoint(self) -> dict[str, Any]:
        async with self._pipeline.turn:
            await self._pipeline.take_checkpoint()
            return self._checkpoint_summary()

    async def rollback(self) -> dict[str, Any]:
        """Take the checkpoint before the newest, walk it through the candles since without learning, and save."""
        async with self._pipeline.turn:
            run, newest = self._pipeline.current_run, self._pipeline.newest_checkpoint
            previous = await self._pipeline.checkpoints.previous(run, newest.open_time) if run and newest else None
            if previous is None:
                raise LivewickError("there is no earlier checkpoint to go back to")
            try:
                await self._pipeline.roll_back_to(previous)
            except TimeoutError:
                raise StoreUnavailable("the database is away: it does not say what was learned since") from None
            detail = {"open_time": previous.open_time, "step": previous.step}
            await self._pipeline.tell("rollback", detail)
            return detail

    def _checkpoint_summary(self) -> dict[str, Any]:
        checkpoint = self._pipeline.newest_checkpoint
        if checkpoint is None:
            raise LivewickError("nothing was learned yet: there is nothing to save")
        return {"open_time": checkpoint.open_time, "step": checkpoint.step}
