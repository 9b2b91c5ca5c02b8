"""SimulatedExchange: Binance's public spot REST and WebSocket on loopback, for an unmodified ccxt client."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from models.candle import Candle
from service.ports import ConfigurationError
from service.simulator.admin import admin_routes
from service.simulator.clock import SimulatedClock
from service.simulator.faults import Fault, FaultBook
from service.simulator.klines import DEFAULT_ROWS, Refused, klines
from service.simulator.market import SECOND_MS
from service.simulator.rest_faults import disturbed_rows, rest_faults
from service.simulator.sockets import Sockets
from service.simulator.trades import agg_trades
from service.simulator.truth import Truth
from service.simulator.wire import error, exchange_info

MAX_SPEED = 1_000  # it pushes every second of its time, so more would only fall behind
_SYMBOL = re.compile(r"[A-Z0-9]+/[A-Z0-9]+")
_DOWN_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 0.01


class SimulatedExchange:
    """An exchange that listens on loopback while its context is open.

    Its history goes back to 2017 and depends on ``seed`` (or the ``candles``, played over and over) and wall time
    only, so it survives a restart. With ``speed`` other than 1 its clock, ``serverTime`` included, starts at
    ``start_ms`` (default: the wall's time) and runs that many times faster; candles come accordingly. ``faults`` are
    what goes wrong, more can be ordered at ``/admin/faults``; ``/admin/truth`` tells what really happened. ``requests``
    counts the REST calls.
    """

    def __init__(
        self,
        *,
        symbols: Sequence[str] = ("ETH/USDT",),
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        candles: Sequence[Candle] | None = None,
        speed: float = 1.0,
        start_ms: int | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        for symbol in symbols:
            if not _SYMBOL.fullmatch(symbol):
                raise ConfigurationError(f"the simulated exchange has spot symbols like ETH/USDT, not {symbol!r}")
        if not 0 < speed <= MAX_SPEED:
            raise ConfigurationError(
                f"the simulated exchange runs up to {MAX_SPEED} times as fast as the wall, not {speed:g}"
            )
        self.host = host
        self.port = port
        self.clock = SimulatedClock(speed, start_ms)
        self.start_ms = self.clock.now_ms()
        self.truth = Truth({symbol.replace("/", ""): symbol for symbol in symbols}, seed, candles)
        self.book = FaultBook(list(faults))
        self.sockets = Sockets(self.clock, self.truth, self.book, self._at_point)
        self.requests = 0
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._pusher: asyncio.Task[None] | None = None

    def ccxt_config(self) -> dict[str, Any]:
        """Return what a ``ccxt.pro.binance`` constructor needs to come here and nowhere else."""
        # The path must hold "/stream": ccxt tells spot from futures by it.
        urls = {"public": f"http://{self.host}:{self.port}/api/v3"}
        sockets = {"spot": f"ws://{self.host}:{self.port}/stream/ws"}
        return {"urls": {"api": {**urls, "ws": sockets}}, "options": {"fetchMarkets": {"types": ["spot"]}}}

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._counted, rest_faults(self.book, self.since_start)])
        app.router.add_get("/api/v3/ping", self._ping)
        app.router.add_get("/api/v3/time", self._time)
        app.router.add_get("/api/v3/exchangeInfo", self._exchange_info)
        app.router.add_get("/api/v3/klines", self._klines)
        app.router.add_get("/api/v3/aggTrades", self._agg_trades)
        for path in ("/stream", "/ws", "/stream/ws", "/ws/{stream}", "/stream/ws/{stream}"):
            app.router.add_get(path, self.sockets.handle)
        app.router.add_routes(admin_routes(self.book, self.truth, self.clock, self.since_start))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await self._listen()
        except ConfigurationError:
            await self._runner.cleanup()
            raise
        self._pusher = asyncio.create_task(self.sockets.run(), name="simulator-pusher")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._pusher is not None:
            self._pusher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pusher
        if self._site is not None:
            await self._site.stop()
        # A connection accepted just now is not the runner's to close until the loop has set it up.
        await asyncio.sleep(_SETTLE_SECONDS)
        for session in list(self.sockets.sessions):
            session.abort()
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.sleep(0)

    async def wait(self) -> None:
        """Return only when pushing candles fails, with that error."""
        if self._pusher is not None:
            await self._pusher

    def since_start(self) -> float:
        """Return the milliseconds of the exchange's time since it was made: what faults count in."""
        return self.clock.now_ms() - self.start_ms

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests += request.path.startswith("/api/")
        return await handler(request)

    # --- REST ---------------------------------------------------------------------------------------------------------

    async def _ping(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _time(self, request: web.Request) -> web.Response:
        off = self.book.active("time_off", self.since_start())
        now = self.clock.now_ms() + (off.option("ms", 3_600_000) if off is not None else 0)
        return web.json_response({"serverTime": int(now)})

    async def _exchange_info(self, request: web.Request) -> web.Response:
        return web.json_response(exchange_info(self.truth.symbols, int(self.clock.now_ms())))

    async def _klines(self, request: web.Request) -> web.Response:
        lag = self.book.active("rest_lag", self.since_start())
        now = self.clock.now_ms() - (lag.option("ms", 2_000) if lag is not None else 0)
        try:
            rows = klines(self.truth, request.query, now)
        except Refused as refused:
            return web.json_response(error(refused.code, str(refused)), status=400)
        rows = disturbed_rows(rows, self.book, self.since_start())
        return web.json_response(rows, headers={"X-MBX-USED-WEIGHT-1M": "2"})

    async def _agg_trades(self, request: web.Request) -> web.Response:
        query = request.query
        if query.get("symbol") not in self.truth.symbols:
            return web.json_response(error(-1121, "Invalid symbol."), status=400)
        start = int(query["startTime"]) if query.get("startTime", "").isdecimal() else None
        limit = int(query["limit"]) if query.get("limit", "").isdecimal() else DEFAULT_ROWS
        return web.json_response(agg_trades(self.truth, query["symbol"], start, limit, self.clock.now_ms()))

    # --- faults of the whole exchange ---------------------------------------------------------------------------------

    async def _at_point(self) -> None:
        for fault in self.book.take(self.since_start()):
            self.sockets.send(self.sockets.disturber.begin(fault))
            await self._begin(fault)
        if self.book.active("down", self.since_start()) is not None:
            await self._go_down()

    async def _begin(self, fault: Fault) -> None:
        now = int(self.clock.now_ms()) // SECOND_MS * SECOND_MS
        match fault.kind:
            case "drop":
                await self._drop(str(fault.options.get("how", "rst")))
            case "shutdown_notice":
                for session in self.sockets.sessions:
                    session.push(json.dumps({"e": "serverShutdown", "E": now}))
                await self._drop("1001")
            case "erase":
                for id_ in self.truth.symbols:
                    self.truth.erase(id_, now + SECOND_MS, fault.option("count", 1))
            case "correct":
                self._correct(now - (fault.option("back", 1) + 1) * SECOND_MS, push=bool(fault.options.get("push")))
            case "shift":
                self.clock.shift(fault.option("ms", 5_000))

    async def _drop(self, how: str) -> None:
        for session in list(self.sockets.sessions):
            if how in ("1000", "1001"):
                await session.close(int(how))
            else:
                session.abort(reset=how == "rst")

    def _correct(self, open_time: int, *, push: bool) -> None:
        for id_ in self.truth.symbols:
            candle = self.truth.correct(id_, open_time)
            if candle is not None and push:
                self.sockets.push_candle(id_, candle)

    async def _go_down(self) -> None:
        """Close the port and every connection, and open it again when the fault is over."""
        assert self._runner is not None and self._site is not None  # noqa: S101, PT018 - only while serving
        await self._site.stop()
        for session in list(self.sockets.sessions):
            session.abort()
        while self.book.active("down", self.since_start()) is not None:
            for session in list(self.sockets.sessions):
                session.abort()
            await asyncio.sleep(_DOWN_LOOK_SECONDS)
        await self._listen()

    async def _listen(self) -> None:
        assert self._runner is not None  # noqa: S101 - set by __aenter__, the only caller's path
        self._site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        try:
            await self._site.start()
        except OSError as error:
            why = "is in use by another program" if error.errno == errno.EADDRINUSE else error.strerror
            raise ConfigurationError(f"the simulated exchange cannot listen: port {self.port} {why}") from error
        self.port = self._runner.addresses[0][1]


async def run_simulator(exchange: SimulatedExchange, listening: Callable[[], None] = lambda: None) -> None:
    """Serve until cancelled; calls ``listening`` when it does. The caller has not entered the exchange's context."""
    async with exchange:
        listening()
        await exchange.wait()
