"""What the pipeline and the API need from the world, as protocols and the records that cross them.

Everything here is implementation-free: ``feed/``, ``storage/``, ``worker.py`` and ``pipeline.py`` implement it, and
``tests/contracts.py`` checks every implementation, real and fake, against the same list.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from models.candle import Candle
from models.records import Learned, Prediction, ScoreWindow, Step, TrendOutcome

RETRY_SECONDS = 0.02
"""Pause before a refused call is made again: a loop without one could keep the event loop to itself."""

EventKind = Literal["gap", "stale", "recovered", "drift", "restart", "rollback", "simulated", "correction"]


class LivewickError(Exception):
    """An expected trouble with one clear line for people; never a bug."""


class ConfigurationError(LivewickError):
    """Something the user set cannot work (unknown symbol, unsupported timeframe): exit code 2."""


class FeedUnreachable(LivewickError):
    """The exchange did not answer; trying again later may help."""


class StoreUnavailable(LivewickError):
    """The database did not take or give records; the same call may work later."""


class LearnerUnavailable(LivewickError):
    """The learner's process is starting or starting again; ``retry_after_seconds`` is an estimate."""

    def __init__(self, message: str, retry_after_seconds: int = 5) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class CheckpointRefused(LivewickError):
    """The learner could not take this state: damaged, or of another shape or version."""


# --- feed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """Candles that the exchange does not have: open times from ``start`` (inclusive) to ``end`` (exclusive)."""

    market: str
    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Correction:
    """The exchange changed a candle after it was handed out: store it, do not learn it again."""

    candle: Candle


@dataclass(frozen=True, slots=True)
class Notice:
    """The feed went ``stale`` or ``recovered``; ``detail`` is JSON-ready."""

    kind: Literal["stale", "recovered"]
    detail: dict[str, Any]


FeedItem = Candle | Gap | Correction | Notice
FeedStatus = Literal["starting", "backfilling", "live", "stale", "unreachable", "closed"]


@dataclass(frozen=True, slots=True)
class FeedState:
    """How the feed is doing now. Ages and lags are by the exchange's clock, in milliseconds."""

    exchange: str
    simulated: bool
    status: FeedStatus
    detail: str = ""
    last_open_time: int | None = None
    age_ms: int | None = None
    lag_ms: float | None = None
    reconnects: int = 0
    backfilled: int = 0
    backfill_total: int | None = None
    filled: int = 0
    gaps: int = 0
    corrections: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


class CandleFeed(Protocol):
    """Closed candles of one market: ordered, each once, validated, without unannounced holes.

    Entering the context reaches the exchange and reads the market's data: raises ConfigurationError for a symbol or
    timeframe the exchange does not have, FeedUnreachable when it does not answer. Leaving it closes every socket
    within 5 s.
    """

    market: str
    interval_ms: int
    tick: float | None

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    def stream(self, after: int | None, backfill: int, recent: Sequence[Candle] = ()) -> AsyncIterator[FeedItem]:
        """Yield for ever, first what is missing since candle ``after`` (exclusive).

        ``recent`` are the last candles the caller has: one that the exchange now tells differently comes as Correction.

        ``after`` None begins with the last ``backfill`` candles. Consecutive candles differ by ``interval_ms`` unless a
        Gap that covers the hole came between them.
        """
        ...

    def state(self) -> FeedState: ...


# --- storage --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """One learner's life with one configuration (``config`` is JSON-ready and decides identity)."""

    id: int
    market: str
    config: dict[str, Any]
    started_at: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a market, as subscribers are told; ``at`` is UTC ms."""

    market: str
    kind: EventKind
    detail: dict[str, Any]
    at: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A learner's whole state after learning candle ``open_time``, opaque bytes; ``loss`` is its rolling log loss."""

    open_time: int
    step: int
    created_at: int
    loss: float | None
    data: bytes = field(repr=False)


@dataclass(slots=True)
class RecordBatch:
    """What one transaction stores; lists are in the order things happened."""

    candles: list[Candle] = field(default_factory=list)
    corrections: list[Candle] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    trends: list[TrendOutcome] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __len__(self) -> int:
        lists = (self.candles, self.corrections, self.predictions, self.steps, self.trends, self.events)
        return sum(len(rows) for rows in lists)


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Means over one bucket that starts at ``open_time``; a field is None where no row had a value."""

    open_time: int
    count: int
    values: dict[str, float | None]


class RecordStore(Protocol):
    """Candles, predictions and steps for good. Every method raises StoreUnavailable for expected trouble."""

    async def latest_run(self, market: str) -> Run | None: ...

    async def open_run(self, market: str, config: dict[str, Any], now_ms: int) -> Run:
        """Return the market's newest run when its config equals this one, else start a new run."""
        ...

    async def write(self, run: Run, batch: RecordBatch) -> None:
        """Store the batch in one transaction; writing it again changes nothing.

        Candles and corrections replace the candle that is there, so that what is stored is what the newest run learned;
        predictions, steps and events that are there stay as they are.
        """
        ...

    async def candles(self, market: str, start: int | None, end: int | None, limit: int) -> list[Candle]:
        """Ascending by open_time, start inclusive, end exclusive; the first ``limit`` of them."""
        ...

    async def last_candles(self, market: str, limit: int) -> list[Candle]:
        """The newest ``limit`` candles, ascending."""
        ...

    async def predictions(self, market: str, start: int | None, end: int | None, limit: int) -> list[Prediction]:
        """Of the market's newest run; ordering and bounds as for candles."""
        ...

    async def steps(self, market: str, start: int | None, end: int | None, limit: int) -> list[Step]: ...

    async def events(self, market: str, start: int | None, end: int | None, limit: int) -> list[Event]: ...

    async def series(
        self, market: str, fields: Sequence[str], bucket_seconds: int, start: int | None, end: int | None, limit: int
    ) -> list[SeriesPoint]:
        """Means of the newest run's steps per bucket; ``fields`` are among SERIES_FIELDS.

        May be fewer than ``limit`` though there are more after them, but is empty only where there are none.
        """
        ...

    async def ping(self) -> None:
        """Return when the database answers a trivial query, else raise StoreUnavailable."""
        ...


SERIES_FIELDS = (
    "loss",
    "accuracy",
    "trend_accuracy",
    "train_loss",
    "grad_norm",
    "grad_norm_clipped",
    "infer_ms",
    "train_ms",
    "lag_ms",
)
"""What ``series`` can average: ``accuracy`` is the mean of ``correct``, ``trend_accuracy`` of ``trend_correct``."""


class CheckpointStore(Protocol):
    """Checkpoints of a run: the last five and the best are kept. Raises StoreUnavailable for expected trouble."""

    async def save(self, run: Run, checkpoint: Checkpoint) -> None: ...

    async def latest(self, run: Run) -> Checkpoint | None:
        """Return the newest checkpoint whose content hash is right; damaged ones on the way are set aside."""
        ...

    async def set_aside(self, run: Run, checkpoint: Checkpoint, reason: str) -> None:
        """Never offer this checkpoint again (it did not load)."""
        ...

    async def previous(self, run: Run, before: int) -> Checkpoint | None:
        """Return the newest good checkpoint with ``open_time`` before this one: where a rollback goes."""
        ...


# --- learner --------------------------------------------------------------------------------------------------------


class LearnerHandle(Protocol):
    """The learner, wherever it runs, one call at a time; calls raise LearnerUnavailable while it is down.

    After a death it comes back with the state of the last acknowledged call, so that the same call can just be made
    again once ``ready`` returns.
    """

    restarts: int
    short_score: dict[str, Any] | None
    on_restart: Callable[[str], None]
    """Called with the reason whenever the learner died and is being restored."""

    @property
    def alive(self) -> bool: ...

    async def run(self) -> None:
        """Keep the learner alive for ever; raises LivewickError when it keeps dying."""
        ...

    async def ready(self) -> None: ...

    async def load(self, checkpoint: bytes | None) -> dict[str, Any]:
        """Start afresh or from a state; returns ``describe()``. Raises CheckpointRefused."""
        ...

    async def predict(self, candle: Candle) -> Prediction: ...
    async def learn(self, candle: Candle) -> Learned: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...

    async def checkpoint(self) -> tuple[int | None, int, bytes]:
        """Return (open_time of the last candle learned, steps made, the whole state)."""
        ...

    async def preview(self, candles: Sequence[Candle]) -> Prediction: ...
    async def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]: ...
    async def describe(self) -> dict[str, Any]: ...


# --- what the API sees of one market --------------------------------------------------------------------------------

Phase = Literal["starting", "warming_up", "live", "stale", "stopped"]


@dataclass(frozen=True, slots=True)
class MarketStatus:
    """A market at a glance. ``phase`` is ``live`` only when predictions are current; ``reason`` says why not."""

    market: str
    phase: Phase
    reason: str
    feed: FeedState | None
    warmup_done: int
    warmup_total: int | None
    learner_alive: bool
    learner_restarts: int
    paused: bool
    database_ok: bool
    backlog: int
    queue_depth: int
    last_step: Step | None
    checkpoint_open_time: int | None
    checkpoint_age_ms: int | None


class LiveMarket(Protocol):
    """One followed market, as the API operates it. Calls that need the learner raise LearnerUnavailable."""

    market: str
    interval_ms: int

    def prediction(self) -> Prediction | None:
        """The latest published prediction, or None before the first."""
        ...

    def status(self) -> MarketStatus: ...
    def short_score(self) -> dict[str, Any] | None: ...
    async def preview(self, candles: Sequence[Candle]) -> Prediction: ...
    async def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]: ...
    async def describe(self) -> dict[str, Any]: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def checkpoint(self) -> dict[str, Any]:
        """Save a checkpoint now; returns {"open_time", "step"}."""
        ...

    async def rollback(self) -> dict[str, Any]:
        """Go back to the checkpoint before the newest; returns {"open_time", "step"}.

        Raises LivewickError when there is none.
        """
        ...


class Publisher(Protocol):
    """Where the pipeline tells subscribers; never waits. ``body`` is merged into the frame, dataclasses allowed."""

    def publish(self, kind: Literal["prediction", "step", "event"], market: str, body: dict[str, Any]) -> int:
        """Number the frame, encode it once, hand it to every subscriber's bounded queue; return its ``seq``."""
        ...


StoreContext = AbstractAsyncContextManager[RecordStore]
