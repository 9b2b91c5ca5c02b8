"""LearnerConfig: what one learner is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

STATE_VERSION = 3
"""Raised whenever saved states could no longer be read, or the same candles would give other numbers."""

Size = Literal["small", "base", "large"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class SizeConfig:
    """A model size: ``width`` is d_model, ``window`` candles are read, ``replays`` old samples join the newest one."""

    width: int
    layers: int
    heads: int
    feedforward: int
    window: int
    replays: int
    learning_rate: float


SIZES: dict[Size, SizeConfig] = {
    "small": SizeConfig(width=32, layers=1, heads=2, feedforward=32, window=24, replays=15, learning_rate=3e-5),
    "base": SizeConfig(width=128, layers=2, heads=4, feedforward=256, window=64, replays=15, learning_rate=3e-5),
    "large": SizeConfig(width=1024, layers=2, heads=8, feedforward=2048, window=200, replays=1, learning_rate=5e-5),
}


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Everything that decides a learner's numbers; ``None`` means by model size.

    ``tick`` is the market's price tick; ``None`` means that a move is flat only when the closes are equal.
    ``trend_horizon`` and ``window`` count candles.
    """

    market: str
    interval_ms: int = 1000
    tick: float | None = None
    model: Size = "small"
    window: int | None = None
    trend_horizon: int = 60
    learning_rate: float | None = None
    clip_norm: float = 1.0
    precision: Precision = "fp32"
    gradient_checkpointing: bool = False
    seed: int = 0
    device: str = "cpu"
    simulated: bool = False

    def __post_init__(self) -> None:
        if self.tick is not None and not self.tick > 0:
            raise ValueError(f"tick was {self.tick}, not above 0")
        if min(self.interval_ms, self.trend_horizon, self.window or 1) < 1:
            raise ValueError("interval_ms, trend_horizon and window must be at least 1")
        if not self.clip_norm > 0 or not (self.learning_rate is None or self.learning_rate > 0):
            raise ValueError("clip_norm and learning_rate must be above 0")

    @property
    def size(self) -> SizeConfig:
        """The model size's figures."""
        return SIZES[self.model]

    @property
    def candles(self) -> int:
        """How many candles the sequence network reads."""
        return self.window or self.size.window

    @property
    def rate(self) -> float:
        """The branch's learning rate."""
        return self.learning_rate or self.size.learning_rate
