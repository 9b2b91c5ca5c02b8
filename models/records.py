"""The frozen records everything downstream speaks: Prediction, Step, Score."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["down", "flat", "up"]
DIRECTIONS: tuple[Direction, ...] = ("down", "flat", "up")
Skip = Literal["nonfinite", "warmup", "gap", "paused"]
ScoreWindow = int | Literal["fading"] | None
"""The last so many candles; all the kept ones, fading; or None for the whole run."""
PREVIEW_CANDLES = 1_500
"""A preview reads no more candles than this from the end: the longest average runs over 900."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Probability that the close ``horizon`` candles ahead lies above the last one."""

    horizon: int
    p_up: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was published, when candle ``open_time - interval`` had closed, about candle ``open_time``.

    Probabilities sum to 1. ``close`` is the expected close, ``close_low``/``close_high`` a central 80 % interval, in
    price units. ``made_at`` is UTC ms. ``step`` counts the training steps in the weights used. ``weights`` maps each
    member of the mixture to how much it counted.
    """

    market: str
    open_time: int
    made_at: int
    step: int
    p_down: float
    p_flat: float
    p_up: float
    direction: Direction
    close: float
    close_low: float
    close_high: float
    trend: Trend
    weights: dict[str, float] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that happened on one candle: the score of its prediction, and the training that followed.

    ``loss`` is the log loss in nats of the published direction probabilities, ``None`` when no prediction had been
    made for this candle. ``grad_norm`` is the global norm before clipping, ``grad_norm_clipped`` after (equal when not
    clipped); both ``None`` when no backward ran. ``skipped`` says why no update was made. Times are milliseconds.
    """

    market: str
    open_time: int
    source: str
    step: int
    loss: float | None
    train_loss: float | None
    correct: bool | None
    trend_correct: bool | None
    direction: Direction | None
    label: Direction | None
    grad_norm: float | None
    grad_norm_clipped: float | None
    clipped: bool
    skipped: Skip | None
    learning_rate: float
    infer_ms: float | None = None
    train_ms: float | None = None
    lag_ms: float | None = None
    queue_depth: int | None = None


@dataclass(frozen=True, slots=True)
class TrendOutcome:
    """A trend that came due: whether the trend predicted for candle ``open_time`` was right."""

    open_time: int
    correct: bool


@dataclass(frozen=True, slots=True)
class LearnerEvent:
    """Something worth telling people that the learner noticed: ``kind`` is ``drift`` or ``rollback``."""

    kind: Literal["drift", "rollback"]
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Learned:
    """What ``Learner.learn`` returns for one candle."""

    step: Step
    trend: TrendOutcome | None = None
    events: tuple[LearnerEvent, ...] = ()
