"""WaitingMarket: stands for a market while its feed is being reached or another process trains it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from models.candle import Candle
from models.records import Prediction, ScoreWindow
from service.ports import FeedState, LearnerUnavailable, MarketStatus


class WaitingMarket:
    """A market without a learner here: it answers its status and why there is no more."""

    def __init__(self, market: str, interval_ms: int, exchange: str, reason: str) -> None:
        self.market = market
        self.interval_ms = interval_ms
        self.reason = reason
        self._exchange = exchange

    def prediction(self) -> Prediction | None:
        return None

    def short_score(self) -> dict[str, Any] | None:
        return None

    def status(self) -> MarketStatus:
        return MarketStatus(
            market=self.market,
            phase="starting",
            reason=self.reason,
            feed=FeedState(exchange=self._exchange, simulated=False, status="starting", detail=self.reason),
            warmup_done=0,
            warmup_total=None,
            learner_alive=False,
            learner_restarts=0,
            paused=False,
            database_ok=True,
            backlog=0,
            queue_depth=0,
            last_step=None,
            checkpoint_open_time=None,
            checkpoint_age_ms=None,
        )

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        self._refuse()

    async def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]:
        self._refuse()

    async def describe(self) -> dict[str, Any]:
        self._refuse()

    async def pause(self) -> None:
        self._refuse()

    async def resume(self) -> None:
        self._refuse()

    async def checkpoint(self) -> dict[str, Any]:
        self._refuse()

    async def rollback(self) -> dict[str, Any]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise LearnerUnavailable(self.reason)
