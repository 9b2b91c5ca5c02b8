"""FakeMarket: a LiveMarket whose state a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from models.candle import Candle
from models.records import Prediction, ScoreWindow
from service.ports import FeedState, LivewickError, MarketStatus
from tests.builders import MARKET, START, make_prediction, make_step

MODEL_SCORES = (
    "accuracy",
    "balanced_accuracy",
    "log_loss",
    "brier",
    "ece",
    "trend_accuracy",
    "interval_coverage",
    "close_mae",
)


class FakeMarket:
    """A live market with a prediction; change ``state`` and ``latest`` as the test needs."""

    def __init__(self, market: str = MARKET) -> None:
        self.market = market
        self.interval_ms = 1000
        self.latest: Prediction | None = make_prediction(1, market=market)
        self.failure: Exception | None = None
        self.asked = 0
        self.previewed: list[Sequence[Candle]] = []
        self.scored: list[tuple[int | None, bool]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        feed = FeedState(
            "binance", market.startswith("simulated"), "live", age_ms=300, last_open_time=START, lag_ms=40.0
        )
        self.state = MarketStatus(
            market=market,
            phase="live",
            reason="",
            feed=feed,
            warmup_done=3600,
            warmup_total=3600,
            learner_alive=True,
            learner_restarts=0,
            paused=False,
            database_ok=True,
            backlog=0,
            queue_depth=0,
            last_step=make_step(market=market),
            checkpoint_open_time=START,
            checkpoint_age_ms=1500,
        )

    def prediction(self) -> Prediction | None:
        return self.latest

    def status(self) -> MarketStatus:
        return self.state

    def short_score(self) -> dict[str, Any] | None:
        return {"accuracy": 0.5}

    def becomes(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.state = replace(self.state, **changes)

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        self.asked += 1
        await self._ready()
        self.previewed.append(candles)
        return make_prediction(open_time=candles[-1].open_time + self.interval_ms)

    async def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]:
        await self._ready()
        self.scored.append((window, live))
        return {
            "market": self.market,
            "window": "all" if window is None else window,
            "candles": 10,
            "moved": 0.5,
            "share": {"down": 0.25, "flat": 0.5, "up": 0.25},
            "model": dict.fromkeys(MODEL_SCORES, 0.5) | {"log_loss": float("nan")},
            "baselines": {"majority": {"accuracy": 0.5, "log_loss": 1.0}, "persistence": {"log_loss": None}},
            "skill": {"majority": 0.01},
            "accuracy_interval": [0.4, 0.6],
            "verdict": "undecided",
        }

    async def describe(self) -> dict[str, Any]:
        await self._ready()
        return {"model": "small", "parameters": 12_345, "device": "cpu"}

    async def pause(self) -> None:
        await self._ready()
        self.becomes(paused=True)

    async def resume(self) -> None:
        await self._ready()
        self.becomes(paused=False)

    async def checkpoint(self) -> dict[str, Any]:
        await self._ready()
        return {"open_time": START, "step": 7}

    async def rollback(self) -> dict[str, Any]:
        await self._ready()
        raise LivewickError("there is no earlier checkpoint to go back to")

    async def _ready(self) -> None:
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
