"""The shapes of the answers, for the API documentation; the records themselves are models' dataclasses."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.problem import CONTENT_TYPE

Direction = Literal["down", "flat", "up"]


class Schema(BaseModel):
    """Describes an answer; nothing is validated with it at run time."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class ProblemOut(Schema):
    """An error, RFC 9457."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Invalid request"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["query.limit: a whole number is needed"])
    request_id: str = Field("", description="Finds the log lines; also in the header X-Request-ID.")


class CandleOut(Schema):
    """One closed OHLCV interval."""

    market: str = Field(examples=["binance:ETH/USDT"])
    open_time: int = Field(description="Start of the interval, UTC milliseconds.", examples=[1_559_865_600_000])
    open: float
    high: float
    low: float
    close: float
    volume: float
    source: Literal["live", "backfill", "filled"]


class TrendOut(Schema):
    """Whether the close `horizon` candles ahead will lie above the last one."""

    horizon: int
    p_up: float = Field(ge=0, le=1)


class PredictionOut(Schema):
    """What is expected of candle `open_time`, made when the candle before it had closed."""

    market: str = Field(examples=["binance:ETH/USDT"])
    open_time: int = Field(description="The predicted candle's start, UTC milliseconds.", examples=[1_559_865_601_000])
    made_at: int
    step: int = Field(description="Training steps in the weights used.")
    p_down: float = Field(ge=0, le=1)
    p_flat: float = Field(ge=0, le=1)
    p_up: float = Field(ge=0, le=1)
    direction: Direction
    close: float = Field(description="Expected close.")
    close_low: float = Field(description="Lower end of the central 80 % interval.")
    close_high: float
    trend: TrendOut
    weights: dict[str, float | None]
    simulated: bool


class StepOut(Schema):
    """The score of the prediction made for a candle, and the training that followed."""

    market: str
    open_time: int
    source: Literal["live", "backfill", "filled"]
    step: int
    loss: float | None = Field(description="Log loss in nats of the published direction probabilities.")
    train_loss: float | None
    correct: bool | None
    trend_correct: bool | None
    direction: Direction | None
    label: Direction | None
    grad_norm: float | None
    grad_norm_clipped: float | None
    clipped: bool
    skipped: Literal["nonfinite", "warmup", "gap", "paused"] | None
    learning_rate: float | None
    infer_ms: float | None
    train_ms: float | None
    lag_ms: float | None
    queue_depth: int | None


class EventOut(Schema):
    """Something that happened to a market."""

    market: str
    kind: str
    detail: dict[str, Any]
    at: int = Field(description="UTC milliseconds.")


class CandlePage(Schema):
    """Candles ascending by `open_time`; `next` is the cursor of the page after, or null."""

    items: list[CandleOut]
    next: str | None


class PredictionPage(Schema):
    """Predictions ascending by `open_time`; `next` is the cursor of the page after, or null."""

    items: list[PredictionOut]
    next: str | None


class StepPage(Schema):
    """Steps ascending by `open_time`; `next` is the cursor of the page after, or null."""

    items: list[StepOut]
    next: str | None


class EventPage(Schema):
    """Events ascending by `at`; `next` is the cursor of the page after, or null."""

    items: list[EventOut]
    next: str | None


class SeriesOut(Schema):
    """Means per bucket: each item has `open_time`, `count` and the fields asked for."""

    bucket: int
    items: list[dict[str, float | None]]
    next: str | None


class ModelScoreOut(Schema):
    """How good the published predictions were; null where nothing was scored yet."""

    model_config = ConfigDict(extra="allow")
    accuracy: float | None
    balanced_accuracy: float | None
    log_loss: float | None
    brier: float | None
    ece: float | None
    trend_accuracy: float | None
    interval_coverage: float | None
    close_mae: float | None


class ShareOut(Schema):
    """How often each direction came."""

    down: float | None
    flat: float | None
    up: float | None


class ScoreOut(Schema):
    """Test-then-train scores beside those of the baselines on the same candles."""

    model_config = ConfigDict(extra="allow")
    market: str
    window: int | Literal["all", "fading"]
    candles: int
    moved: float | None
    share: ShareOut
    model: ModelScoreOut
    baselines: dict[str, dict[str, float | None]]
    skill: dict[str, float | None] = Field(description="1 - model log loss / baseline log loss.")
    accuracy_interval: list[float] | None
    verdict: Literal["better", "worse", "undecided"]


class FeedOut(Schema):
    """How the feed is doing."""

    model_config = ConfigDict(extra="allow")
    exchange: str
    simulated: bool
    status: str
    age_ms: int | None


class WarmupOut(Schema):
    """Candles learned of those needed before predictions count as live; `total` null where unknown."""

    done: int
    total: int | None


class MarketOut(Schema):
    """One followed market: `phase` is `live` only when predictions are current, `reason` says why not."""

    market: str
    interval_ms: int
    phase: Literal["starting", "warming_up", "live", "stale", "stopped"]
    reason: str
    simulated: bool
    feed: FeedOut | None
    warmup: WarmupOut
    learner_alive: bool
    learner_restarts: int
    paused: bool
    database_ok: bool
    backlog: int
    queue_depth: int
    step: int | None
    checkpoint_open_time: int | None
    checkpoint_age_ms: int | None


class MarketsOut(Schema):
    """All followed markets, and the version and seq of the service."""

    markets: list[MarketOut]
    version: str
    seq: int


class ModelOut(Schema):
    """The network, its device and configuration, and how far it has learned."""

    model_config = ConfigDict(extra="allow")
    market: str
    step: int | None
    paused: bool
    restarts: int
    checkpoint_open_time: int | None
    checkpoint_age_ms: int | None


class PausedOut(Schema):
    """Whether training is paused now."""

    market: str
    paused: bool


class CheckpointOut(Schema):
    """The checkpoint that was saved, or gone back to."""

    market: str
    open_time: int
    step: int


class LiveOut(Schema):
    """The process answers."""

    status: Literal["live"]


class ReadyOut(Schema):
    """Every check is ok."""

    status: Literal["ready"]
    checks: dict[str, str]


class TicketOut(Schema):
    """A ticket for one WebSocket: send it as `{"type":"auth","ticket":…}` first."""

    ticket: str
    expires_in: int = Field(description="Seconds.", examples=[30])


PROBLEMS = {
    400: "The Host header is not one of ours.",
    401: "A key is needed, or this one is not right.",
    403: "Browsers may not do this from another site.",
    404: "This market is not followed.",
    408: "The body did not arrive in time.",
    409: "This cannot be done in the present state.",
    413: "The body is larger than 1 MiB.",
    422: "The request is not valid; `detail` says what is wrong.",
    429: "Too many requests; `Retry-After` says when to come again.",
    431: "The request's headers are too large.",
    500: "A bug; `request_id` finds it in the log.",
    503: "Not available now; `Retry-After` says when to come again.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document these error answers and those that any route can give."""
    return {status: _problem(status) for status in sorted({*statuses, 400, 401, 403, 413, 429, 431, 500})}


def _problem(status: int) -> dict[str, Any]:
    example = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": PROBLEMS[status]}
    schema = {"$ref": "#/components/schemas/ProblemOut"}
    answer = {"description": PROBLEMS[status], "content": {CONTENT_TYPE: {"schema": schema, "example": example}}}
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
    return answer
