"""A service that speaks the contract from a script: the page's tests decide every frame it sends."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

STATIC = Path(__file__).parents[3] / "service" / "dashboard" / "static"
MARKET = "simulated:ETH/USDT"
START = 1_760_000_000_000
DIRECTIONS = ("down", "flat", "up")
# The policy of the real API, so that a page that breaks it breaks here.
POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"

Json = dict[str, Any]


class StubService:
    """Everything is written from the test's thread and read in the server's; ``requests`` are the paths asked for."""

    def __init__(self, key: str | None = None, static: Path = STATIC, seed: int = 1) -> None:
        self.key = key
        self.static = static
        self.random = random.Random(seed)
        self.market = MARKET
        self.candles: list[Json] = []
        self.predictions: list[Json] = []
        self.steps: list[Json] = []
        self.events: list[Json] = []
        self.frames: list[Json] = []
        self.seq = 1000
        self.requests: list[str] = []
        self.afters: list[str | None] = []
        self.auths: list[Json] = []
        self.sockets: set[WebSocket] = set()
        self.refusing = False
        self.unwritten = 0
        self.feed_ahead_ms = 0
        self.status: Json = {"phase": "live", "reason": "", "simulated": False, "age_ms": 400, "done": 0, "total": 0}
        self.verdict = "undecided"
        self.loop: asyncio.AbstractEventLoop | None = None
        self.url = ""

    # --- the script ---

    def close_candles(self, count: int, tell: bool = True) -> None:
        """Close ``count`` candles as a learner would live them: prediction frame, then step frame."""
        for _ in range(count):
            self._close_candle(tell)

    def _close_candle(self, tell: bool) -> None:
        last = self.candles[-1]["close"] if self.candles else 180.0
        ticks = self.random.choice((-4, -2, -1, 0, 0, 0, 1, 2, 4)) + (1 if math.sin(len(self.candles) / 25) > 0 else -1)
        close = round(last + ticks * 0.01, 2)
        high = round(max(last, close) + self.random.choice((0, 0.01, 0.02)), 2)
        low = round(min(last, close) - self.random.choice((0, 0.01, 0.02)), 2)
        time = START + 1000 * len(self.candles)
        candle = {"market": self.market, "open_time": time, "open": last, "high": high, "low": low, "close": close}
        candle |= {"volume": 1.5, "source": "live"}
        label = "up" if close > last else "down" if close < last else "flat"
        self.candles.append(candle)
        previous = self.predictions[-1] if self.predictions else None
        self.predictions.append(self._predict(time + 1000, close))
        self.steps.append(self._step(time, label, previous))
        if tell:
            self.tell("prediction", candle=candle, prediction=self.predictions[-1])
            self.tell("step", step=self.steps[-1], score=self.short_score())

    def _predict(self, time: int, close: float) -> Json:
        weights = [self.random.uniform(0.6, 1.6) for _ in range(3)]
        down, flat, up = (weight / sum(weights) for weight in weights)
        direction = DIRECTIONS[max(range(3), key=lambda i: (down, flat, up)[i])]
        return {
            "market": self.market, "open_time": time, "made_at": time + 40, "step": len(self.steps),
            "p_down": down, "p_flat": flat, "p_up": up, "direction": direction,
            "close": close + round((up - down) * 0.03, 4), "close_low": close - 0.05, "close_high": close + 0.052,
            "trend": {"horizon": 60, "p_up": 0.52}, "weights": {"network": 0.7, "linear": 0.3},
            "simulated": self.status["simulated"],
        }  # fmt: skip

    def _step(self, time: int, label: str, previous: Json | None) -> Json:
        norm = self.random.lognormvariate(0, 0.7)
        return {
            "market": self.market, "open_time": time, "source": "live", "step": len(self.steps) + 1,
            "loss": -math.log(previous[f"p_{label}"]) if previous else None, "train_loss": 1.02,
            "correct": previous["direction"] == label if previous else None, "trend_correct": None,
            "direction": previous["direction"] if previous else None, "label": label,
            "grad_norm": norm, "grad_norm_clipped": min(norm, 1.0), "clipped": norm > 1, "skipped": None,
            "learning_rate": 3e-4, "infer_ms": 3.1, "train_ms": 9.7, "lag_ms": 21.0, "queue_depth": 0,
        }  # fmt: skip

    def event(self, kind: str, **detail: Any) -> None:
        at = self.candles[-1]["open_time"] + 1000
        self.events.append({"market": self.market, "kind": kind, "detail": detail, "at": at})
        self.tell("event", kind=kind, detail=detail, at=at)

    def tell(self, kind: str, /, **body: Any) -> None:
        """Number a frame, keep it for ``after=`` and send it to every socket."""
        self.seq += 1
        frame = {"type": kind, "seq": self.seq, "market": self.market, **body}
        self.frames.append(frame)
        self.send_text(json.dumps(frame))

    def send_text(self, text: str) -> None:
        """Send these very characters to every socket, JSON or not."""
        self._in_loop(lambda: [asyncio.ensure_future(socket.send_text(text)) for socket in list(self.sockets)])

    def drop_sockets(self) -> None:
        """Close every socket as a restarting service would."""
        self._in_loop(lambda: [asyncio.ensure_future(socket.close(1001)) for socket in list(self.sockets)])

    def _in_loop(self, act: Callable[[], object]) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(act)

    def short_score(self) -> Json:
        return {"window": 300, "candles": 300, "accuracy": 0.44, "log_loss": 1.041}

    # --- the service ---

    def app(self) -> Starlette:
        routes = [
            Route("/", self.page),
            Mount("/static", StaticFiles(directory=self.static)),
            Route("/markets", self.guarded(self.markets)),
            Route("/candles", self.guarded(lambda request: self.history(request, self.candles))),
            Route("/predictions", self.guarded(lambda request: self.history(request, self.predictions))),
            Route("/steps", self.guarded(lambda request: self.history(request, self.steps))),
            Route("/events", self.guarded(lambda request: {"items": self.events, "next": None})),
            Route("/series", self.guarded(self.series)),
            Route("/score", self.guarded(self.score)),
            Route("/model", self.guarded(self.model)),
            Route("/ws-ticket", self.guarded(lambda request: {"ticket": "once"}), methods=["POST"]),
            WebSocketRoute("/ws", self.follow),
        ]
        return Starlette(routes=routes)

    def page(self, request: Request) -> Response:
        return FileResponse(self.static / "index.html", headers={"Content-Security-Policy": POLICY})

    def guarded(self, answer: Callable[[Request], Json]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            self.requests.append(f"{request.url.path}?{request.url.query}")
            if self.refusing:
                return JSONResponse({"title": "Unavailable", "status": 503}, 503)
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"title": "Unauthorized", "status": 401}, 401)
            return JSONResponse(answer(request))

        return respond

    def markets(self, request: Request) -> Json:
        last = self.candles[-1]["open_time"] + self.feed_ahead_ms if self.candles else None
        feed = {"exchange": "simulated", "simulated": self.status["simulated"], "status": "live", "detail": ""}
        feed |= {"last_open_time": last, "age_ms": self.status["age_ms"], "lag_ms": 12.0}
        status = {
            "market": self.market,
            "interval_ms": 1000,
            "phase": self.status["phase"],
            "reason": self.status["reason"],
        }
        status |= {"feed": feed, "simulated": self.status["simulated"]}
        status |= {
            "warmup": {"done": self.status["done"], "total": self.status["total"]},
            "learner_alive": True,
            "paused": False,
            "database_ok": True,
            "backlog": 0,
        }
        status |= {"checkpoint_age_ms": 94_000}
        return {"markets": [status], "version": "0", "seq": self.seq}

    def history(self, request: Request, records: list[Json]) -> Json:
        start = int(request.query_params.get("start", 0))
        limit = int(request.query_params.get("limit", 1000))
        after = int(request.query_params.get("cursor", -1))
        stored = records[: len(records) - self.unwritten]
        rows = [row for row in stored if row["open_time"] >= start and row["open_time"] > after]
        return {"items": rows[:limit], "next": str(rows[limit - 1]["open_time"]) if len(rows) > limit else None}

    def series(self, request: Request) -> Json:
        bucket = int(request.query_params["bucket"])
        means: dict[int, list[Json]] = {}
        for step in self.steps:
            means.setdefault(step["open_time"] // (bucket * 1000) * bucket * 1000, []).append(step)
        items = []
        for time, steps in means.items():
            item: Json = {"open_time": time, "count": len(steps)}
            for field in request.query_params["fields"].split(","):
                values = [step[field] for step in steps if step[field] is not None]
                item[field] = sum(values) / len(values) if values else None
            items.append(item)
        return {"bucket": bucket, "items": items}

    def score(self, request: Request) -> Json:
        model = {"accuracy": 0.488, "balanced_accuracy": 0.458, "log_loss": 1.005, "brier": 0.6, "ece": 0.02}
        losses = {"majority": 1.0813, "repeat": 1.21, "reverse": 1.16, "markov": 1.0676, "linear": 1.0089}
        baselines: Json = {
            name: {"accuracy": 0.41 + 0.01 * i, "log_loss": loss} for i, (name, loss) in enumerate(losses.items())
        }
        baselines["persistence"] = {"accuracy": None, "log_loss": None, "close_mae": 0.02}
        skill = {name: 1 - model["log_loss"] / loss for name, loss in losses.items()}
        return {
            "market": self.market, "window": request.query_params["window"], "candles": len(self.steps), "moved": 0.61,
            "share": {"down": 0.3, "flat": 0.39, "up": 0.31}, "model": model, "baselines": baselines, "skill": skill,
            "accuracy_interval": [0.451, 0.523], "verdict": self.verdict,
        }  # fmt: skip

    def model(self, request: Request) -> Json:
        return {
            "market": self.market,
            "parameters": 38_400,
            "device": "cpu",
            "precision": "fp32",
            "step": len(self.steps),
        }

    async def follow(self, socket: WebSocket) -> None:
        await socket.accept()
        after = socket.query_params.get("after")
        self.afters.append(after)
        if self.key is not None:
            self.auths.append(await socket.receive_json())
        await socket.send_json({"type": "hello", "protocol": 1, "seq": self.seq, "markets": [self.market]})
        if after is not None:
            for frame in [frame for frame in self.frames if frame["seq"] > int(after)]:
                await socket.send_json(frame)
        self.sockets.add(socket)
        try:
            while True:
                if (await socket.receive_json()) == {"type": "ping"}:
                    await socket.send_json({"type": "pong"})
        except WebSocketDisconnect:
            pass
        finally:
            self.sockets.discard(socket)


@contextmanager
def serving(app: Any, started: Callable[[asyncio.AbstractEventLoop], None] = lambda loop: None) -> Iterator[str]:
    """Serve ``app`` on a free loopback port from a thread of its own; yield its address."""
    config = uvicorn.Config(
        app, port=0, log_level="error", lifespan="off", ws="websockets-sansio", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    up = threading.Event()

    async def serve() -> None:
        asyncio.get_running_loop().call_soon(poll)
        started(asyncio.get_running_loop())
        await server.serve()

    def poll() -> None:
        if server.started:
            up.set()
        else:
            asyncio.get_running_loop().call_later(0.01, poll)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="stub-service")
    thread.start()
    try:
        if not up.wait(10):
            raise RuntimeError("the stub service did not start")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def running(stub: StubService) -> Iterator[StubService]:
    """Run the stub; its ``url`` is set inside."""

    def remember(loop: asyncio.AbstractEventLoop) -> None:
        stub.loop = loop

    with serving(stub.app(), remember) as url:
        stub.url = url
        yield stub
