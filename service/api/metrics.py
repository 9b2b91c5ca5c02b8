"""What Prometheus is told: counted as it happens, or read from the markets when it asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from models.records import Step
from service.api.deps import ApiDeps
from service.api.limits import Places, SocketLimit
from service.api.schemas import problems
from service.broadcast import FrameKind
from service.ports import LiveMarket

router = APIRouter(tags=["health"])
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"}
UNMATCHED, STATIC = "unmatched", "/static"
PHASES = ("starting", "warming_up", "live", "stale", "stopped")


class Metrics:
    """The counters of one API. Labels come from routes, settings and fixed words only, never from what a user sends."""

    def __init__(self, deps: ApiDeps, sockets: SocketLimit, previews: Mapping[str, Places]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # Half of all series otherwise, and nobody asks for them.
        self.registry = CollectorRegistry()
        self._http(self.registry)
        self._frames(self.registry)
        self._training(self.registry)
        Gauge("livewick_ws_clients", "Open WebSockets.", registry=self.registry).set_function(lambda: sockets.open)
        waiting = Gauge(
            "livewick_previews", "POST /predict with the learner or waiting for it.", registry=self.registry
        )
        waiting.set_function(lambda: sum(places.taken for places in previews.values()))
        ProcessCollector(registry=self.registry)
        self.registry.register(MarketCollector(deps))
        deps.broadcaster.observe(self.published)

    def _http(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route", "status")
        self._requests = Counter("livewick_http_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "livewick_http_seconds", "Time to answer.", ("route",), buckets=SECONDS, registry=registry
        )

    def _frames(self, registry: CollectorRegistry) -> None:
        self._published = Counter("livewick_frames_published", "Frames published.", ("kind",), registry=registry)
        self._sent_frames = Counter("livewick_ws_frames_sent", "Frames sent to clients.", registry=registry)
        self._sent_bytes = Counter("livewick_ws_bytes_sent", "Bytes of frames sent to clients.", registry=registry)
        self.socket_ends = Counter("livewick_ws_ends", "WebSockets ended, by reason.", ("why",), registry=registry)
        self.sockets_refused = Counter("livewick_ws_refused", "WebSocket handshakes refused.", registry=registry)

    def _training(self, registry: CollectorRegistry) -> None:
        market = ("market",)
        self._steps = Counter("livewick_steps", "Candles learned or skipped.", market, registry=registry)
        self._clipped = Counter(
            "livewick_steps_clipped", "Steps whose gradient was clipped.", market, registry=registry
        )
        self._correct = Counter("livewick_steps_correct", "Directions predicted right.", market, registry=registry)
        self._skipped = Counter(
            "livewick_steps_skipped", "Candles without an update.", ("market", "reason"), registry=registry
        )
        self._events = Counter("livewick_events", "Events, by kind.", ("market", "kind"), registry=registry)
        self._times = {
            name: Histogram(f"livewick_{name}", text, market, buckets=MS, registry=registry)
            for name, text in (
                ("infer_ms", "Time to predict, ms."),
                ("train_ms", "Time to train, ms."),
                ("lag_ms", "From a candle's close to its prediction being published, ms."),
            )
        }

    def expect_routes(self, routes: Iterable[str]) -> None:
        """Make the series of these route templates now, so that no request makes them grow."""
        for route in (*routes, UNMATCHED, STATIC):
            self._seconds.labels(route)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by the route's template."""
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def sent(self, text: str) -> None:
        """Count a frame sent to one client."""
        self._sent_frames.inc()
        self._sent_bytes.inc(len(text))

    def published(self, kind: FrameKind, market: str, body: dict[str, Any]) -> None:
        """Count a frame, and what it says about training."""
        self._published.labels(kind).inc()
        step = body.get("step")
        if isinstance(step, Step):
            self._step(market, step)
        if kind == "event":
            self._events.labels(market, str(body.get("kind"))).inc()

    def _step(self, market: str, step: Step) -> None:
        self._steps.labels(market).inc()
        self._clipped.labels(market).inc(step.clipped)
        self._correct.labels(market).inc(bool(step.correct))
        if step.skipped is not None:
            self._skipped.labels(market, step.skipped).inc()
        for name, histogram in self._times.items():
            value = getattr(step, name)
            if value is not None:
                histogram.labels(market).observe(value)


class MarketCollector(Collector):
    """Reads the state of every market when Prometheus asks."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: markets come and go."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge family per fact."""
        families: dict[str, GaugeMetricFamily] = {}
        for market in list(self._deps.markets.values()):
            for name, text, value in _facts(market):
                family = families.setdefault(name, GaugeMetricFamily(name, text, labels=["market"]))
                if value is not None:
                    family.add_metric([market.market], float(value))
        yield from families.values()


def _facts(market: LiveMarket) -> Iterator[tuple[str, str, float | None]]:
    status = market.status()
    step, feed = status.last_step, status.feed
    yield "livewick_phase", "0 starting, 1 warming up, 2 live, 3 stale, 4 stopped.", PHASES.index(status.phase)
    yield "livewick_learner_alive", "Whether the learner's process answers.", status.learner_alive
    yield "livewick_learner_restarts", "How often it was started again.", status.learner_restarts
    yield "livewick_paused", "Whether training is paused.", status.paused
    yield "livewick_database_ok", "Whether the last write succeeded.", status.database_ok
    yield "livewick_backlog", "Records waiting for the database.", status.backlog
    yield "livewick_queue_depth", "Candles waiting for the learner.", status.queue_depth
    yield "livewick_warmup_done", "Candles of the warm-up learned.", status.warmup_done
    yield "livewick_checkpoint_age_seconds", "Age of the newest checkpoint.", _seconds(status.checkpoint_age_ms)
    if step is not None:
        yield "livewick_step", "Training steps so far.", step.step
        yield "livewick_loss", "Log loss of the last candle, nats.", step.loss
        yield "livewick_train_loss", "Training objective of the last candle.", step.train_loss
        yield "livewick_grad_norm", "Gradient norm before clipping.", step.grad_norm
        yield "livewick_grad_norm_clipped", "Gradient norm after clipping.", step.grad_norm_clipped
        yield "livewick_learning_rate", "Learning rate of the last step.", step.learning_rate
    if feed is not None:
        yield "livewick_feed_age_seconds", "Age of the newest candle.", _seconds(feed.age_ms)
        yield "livewick_feed_lag_seconds", "From a candle's close to its arrival.", _seconds(feed.lag_ms)
        yield "livewick_feed_reconnects", "Reconnects to the exchange.", feed.reconnects
        yield "livewick_feed_gaps", "Gaps of the exchange.", feed.gaps
        yield "livewick_feed_filled", "Seconds without trades that were filled.", feed.filled
        yield "livewick_feed_rejected", "Rows refused.", sum(feed.rejected.values())


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse, responses=problems(422))
async def metrics(request: Request) -> Response:
    """Tell the metrics in Prometheus' text format."""
    kept: Metrics = request.app.state.metrics
    return Response(generate_latest(kept.registry), media_type=CONTENT_TYPE)
