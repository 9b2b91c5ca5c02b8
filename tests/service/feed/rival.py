"""A second exchange on loopback, written apart from service/simulator, as bad as its plan says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

from aiohttp import WSMsgType, web

from tests.service.feed.rival_market import SECOND, RivalMarket, Row
from tests.service.feed.rival_plan import JUNK, Ill, Plan

SYMBOL = "ETHUSDT"
PUSH_SECONDS = 0.2
INFO: dict[str, Any] = {
    "symbols": [
        {
            "symbol": id_,
            "status": "TRADING",
            "baseAsset": id_[:-4],
            "quoteAsset": "USDT",
            "isSpotTradingAllowed": True,
            "filters": [{"filterType": "PRICE_FILTER", "tickSize": "0.01000000"}],
            "permissionSets": [["SPOT"]],
        }
        for id_ in (SYMBOL, "BTCUSDT")
    ]
}


class Rival:
    """Serves REST and sockets on one port; ``plan`` says what goes wrong when, in seconds since the start."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.market = RivalMarket(seed)
        self.begun = time.monotonic()
        self.requests = 0
        self.dials = 0
        self.port = 0
        self._random = random.Random(seed + 1)
        self._sockets: set[web.WebSocketResponse] = set()
        self._transports: dict[web.WebSocketResponse, asyncio.Transport] = {}
        self._deaf: set[web.WebSocketResponse] = set()
        self._subscribed: set[web.WebSocketResponse] = set()
        self._compress = self._random.random() < 0.5
        self._epoch_ms = time.time() * 1_000 + plan.clock_off_ms
        self._queue: list[tuple[float, str]] = []
        self._pushed: set[tuple[int, bool]] = set()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def at(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun

    def now_ms(self) -> float:
        jumped = sum(ill.number("ms") for ill in self.plan.of("clock_jump") if ill.start <= self.at)
        return self._epoch_ms + self.at * 1_000 + jumped

    def ill(self, kind: str) -> Ill | None:
        return self.plan.now(kind, self.at)

    async def _while(self, *kinds: str) -> None:
        for _ in range(2 * len(self.plan.ills)):
            ends = [ill.end for ill in map(self.ill, kinds) if ill is not None]
            await asyncio.sleep(max(ends, default=self.at) - self.at)

    # --- life ---------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[dict[str, Any]]:
        """Serve; yields the configuration for ccxt."""
        app = web.Application(middlewares=[self._hurt])
        app.router.add_get("/api/v3/exchangeInfo", self._info)
        app.router.add_get("/api/v3/time", self._time)
        app.router.add_get("/api/v3/klines", self._klines)
        app.router.add_get("/stream/ws/{n}", self._socket)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self.begun = time.monotonic()
        self.market.begin(self.now_ms())
        pushing = asyncio.create_task(self._push_for_ever())
        try:
            base = f"127.0.0.1:{self.port}"
            yield {"urls": {"api": {"public": f"http://{base}/api/v3", "ws": {"spot": f"ws://{base}/stream/ws"}}}}
        finally:
            pushing.cancel()
            await asyncio.wait([pushing])
            for transport in self._transports.values():
                transport.abort()
            await runner.cleanup()
        if not pushing.cancelled():
            pushing.result()

    # --- REST ---------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _hurt(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not request.path.startswith("/api/"):
            return await handler(request)
        self.requests += 1
        if (slow := self.ill("rest_slow")) is not None:
            await asyncio.sleep(slow.number("seconds"))
        await self._while("rest_hang", "blackout")
        if self.ill("rest_reset") or self.ill("dead"):
            return _hang_up(request)
        if (status := self.ill("rest_status")) is not None:
            return self._refuse(status)
        return await handler(request)

    def _refuse(self, ill: Ill) -> web.Response:
        headers = {}
        if ill.options.get("retry") == "seconds":
            headers["Retry-After"] = "3"
        elif ill.options.get("retry") == "date":
            headers["Retry-After"] = formatdate(time.time() + 4, usegmt=True)
        elif ill.options.get("retry"):
            headers["Retry-After"] = str(ill.options["retry"])
        body = str(ill.options.get("body", '{"code":-1003,"msg":"Too much"}'))
        kind = "text/html" if body.startswith("<") else "application/json"
        return web.Response(status=int(ill.number("status")), text=body, content_type=kind, headers=headers)

    async def _info(self, request: web.Request) -> web.StreamResponse:
        if (ill := self.ill("info")) is not None:
            await asyncio.sleep(ill.number("seconds"))
            if "status" in ill.options:
                return web.Response(status=int(ill.number("status")), text="<html>", content_type="text/html")
        return web.json_response(INFO)

    async def _time(self, request: web.Request) -> web.StreamResponse:
        if (ill := self.ill("time")) is None:
            return web.json_response({"serverTime": int(self.now_ms())})
        if ill.options["how"] == "missing":
            return web.Response(status=404, text="<html>not here</html>", content_type="text/html")
        if ill.options["how"] == "text":
            return web.json_response({"serverTime": "soon"})
        return web.json_response({"serverTime": int(self.now_ms() + ill.number("ms"))})

    async def _klines(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        limit = min(int(query.get("limit", 500)), 500 if self.ill("rest_short") is None else 60)
        now = self.now_ms() - (self.ill("rest_old").number("ms") if self.ill("rest_old") else 0)  # type: ignore[union-attr]
        newest = int(now) // SECOND * SECOND
        start = int(query["startTime"]) if "startTime" in query else newest - (limit - 1) * SECOND
        start = -(-start // SECOND) * SECOND
        if self.ill("rest_older") is not None:
            start -= 20 * SECOND
        rows = self.market.rows(start, limit, now)
        if self.ill("rest_no_running") is not None and rows and rows[-1].time == newest:
            rows.pop()
        if (ill := self.ill("rest_body")) is not None:
            return await self._spoilt(request, str(ill.options["how"]), [row.kline() for row in rows])
        return web.json_response([row.kline() for row in rows])

    async def _spoilt(self, request: web.Request, how: str, rows: list[list[Any]]) -> web.StreamResponse:
        text = json.dumps(rows)
        match how:
            case "html":
                return web.Response(text="<html>maintenance</html>", content_type="text/html")
            case "truncated":
                return web.Response(text=text[: len(text) // 2], content_type="application/json")
            case "binary":
                return web.Response(body=bytes(range(256)), content_type="application/octet-stream")
            case "charset":
                return web.Response(body=text.encode(), headers={"Content-Type": "application/json; charset=klingon"})
            case "gzip":
                headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
                return web.Response(body=b"no gzip at all", headers=headers)
            case "null" | "{}" | "[]" | '"text"' | "7" | "true" | "[[]]" | "[null]" | '[{"t":1}]' | "[[1,2,3]]":
                return web.Response(text=how, content_type="application/json")
            case "error200":
                return web.json_response({"code": -1001, "msg": "Internal error; unable to process your request."})
            case "unordered":
                self._random.shuffle(rows)
            case "reversed":
                rows.reverse()
            case "doubled":
                rows = [row for row in rows for _ in range(2)]
            case "gappy":
                rows = [row for row in rows if self._random.random() < 0.7]
            case "nan":
                rows = [[*row[:4], "NaN", *row[5:]] if self._random.random() < 0.3 else row for row in rows]
            case "short_rows":
                rows = [row[:4] if self._random.random() < 0.3 else row for row in rows]
            case "text_times":
                rows = [[str(row[0]), *row[1:]] for row in rows]
            case "numbers":
                rows = [[row[0], *(float(value) for value in row[1:6]), *row[6:]] for row in rows]
            case "middle":
                response = web.StreamResponse(headers={"Content-Type": "application/json"})
                response.content_length = len(text)
                await response.prepare(request)
                await response.write(text[: len(text) // 2].encode())
                _hang_up(request)
                return response
        return web.json_response(rows)

    # --- sockets ------------------------------------------------------------------------------------------------------

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        self.dials += 1
        await self._while("ws_hang", "blackout")
        if self.ill("dead") or self.ill("ws_reset") or request.transport is None:
            return _hang_up(request)
        if (ill := self.ill("ws_status")) is not None:
            return self._refuse(ill)
        socket = web.WebSocketResponse(autoping=False, compress=self._compress)
        try:
            await socket.prepare(request)
        except ConnectionResetError:  # gone while we kept it waiting
            return web.Response()
        self._sockets.add(socket)
        assert isinstance(request.transport, asyncio.Transport)
        self._transports[socket] = request.transport
        if self.ill("ws_deaf") is not None:
            self._deaf.add(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.PING and not self.ill("no_pong") and not self.ill("blackout"):
                    await socket.pong(message.data)
                elif message.type is WSMsgType.TEXT:
                    await self._asked(socket, json.loads(message.data))
        finally:
            for group in (self._sockets, self._deaf, self._subscribed):
                group.discard(socket)
            del self._transports[socket]
        return socket

    async def _asked(self, socket: web.WebSocketResponse, message: Any) -> None:
        assert message["method"] == "SUBSCRIBE"
        if (ill := self.ill("subscribe")) is not None:
            match ill.options["how"]:
                case "error":
                    await socket.send_json({"error": {"code": 2, "msg": "Invalid request"}, "id": message["id"]})
                    return
                case "error5":
                    await socket.send_json({"error": {"code": 503, "msg": "busy"}, "id": message["id"], "status": 503})
                    return
                case "nothing":
                    return
                case "close":
                    await socket.close(code=1008, message=b"Too many requests")
                    return
                case "unacked":
                    self._subscribed.add(socket)
                    return
        await socket.send_json({"result": None, "id": message["id"]})
        self._subscribed.add(socket)

    # --- pushing ------------------------------------------------------------------------------------------------------

    async def _push_for_ever(self) -> None:
        last = int(self.now_ms()) // SECOND * SECOND
        done: set[Ill] = set()
        while True:
            await asyncio.sleep(PUSH_SECONDS - time.monotonic() % PUSH_SECONDS)
            for ill in self.plan.ills:
                if ill.start <= self.at and ill not in done:
                    done.add(ill)
                    await self._begin(ill)
            now = self.now_ms()
            forming = int(now) // SECOND * SECOND
            while last < forming:
                self._frame(last, now, closed=True)
                last += SECOND
            last = forming
            if not self.ill("no_partials"):
                self._frame(forming, now, closed=False)
            await self._flush()

    def _frame(self, time_ms: int, now: float, *, closed: bool) -> None:
        row = self.market.row(time_ms, now)
        if row is None or (closed and self.ill("no_finals")) or (self.ill("frames_gone") is not None):
            return
        frame = row.frame(SYMBOL, now, closed=closed, style=self._style())
        late = self.ill("late")
        due = self.at + (late.number("seconds") if late is not None else 0)
        held = self.ill("burst")
        if held is not None:
            due = held.end
        if closed and self.ill("swap") is not None:
            due += 0.5
        self._queue.append((due, json.dumps(frame)))
        if closed and self.ill("twice") is not None:
            self._queue.append((due, json.dumps(frame)))
        if closed and self.ill("contradict") is not None:
            other = Row(row.time, row.open, row.high + 1, row.low, row.high + 1, row.volume + 1, row.trades)
            self._queue.append((due + 0.1, json.dumps(other.frame(SYMBOL, now, closed=True))))
        if closed and self.ill("early") is not None and (after := self.market.row(time_ms, now - 700)) is not None:
            self._queue.append((due + 0.3, json.dumps(after.frame(SYMBOL, now, closed=False))))
        if closed and self.ill("old_again") is not None and (old := self.market.row(time_ms - 7_000, now)) is not None:
            self._queue.append((due, json.dumps(old.frame(SYMBOL, now, closed=True))))

    def _style(self) -> str:
        ill = self.ill("style")
        return str(ill.options["how"]) if ill is not None else "plain"

    async def _flush(self) -> None:
        due = [text for at, text in self._queue if at <= self.at]
        self._queue = [(at, text) for at, text in self._queue if at > self.at]
        if self.ill("silent") or self.ill("blackout"):
            return
        if self.ill("junk") is not None:
            due.insert(self._random.randint(0, len(due)), self._random.choice(JUNK))
        for socket in list(self._subscribed - self._deaf):
            for text in due:
                await self._send(socket, text)

    async def _send(self, socket: web.WebSocketResponse, text: str) -> None:
        with contextlib.suppress(ConnectionError):
            if text.startswith("\0"):
                await socket.send_bytes(text.encode())
            else:
                await socket.send_str(text)

    async def _begin(self, ill: Ill) -> None:
        now = int(self.now_ms()) // SECOND * SECOND
        match ill.kind:
            case "drop" | "dead":
                for socket in list(self._sockets):
                    await self._drop(socket, int(ill.options.get("code", 0)))
            case "half_frame":
                for transport in self._transports.values():
                    transport.write(b"\x81\x7e\x01\x00" + b'{"e":"kli')
                    transport.abort() if ill.options["cut"] else None
            case "bad_frame":
                for transport in self._transports.values():
                    transport.write(bytes(self._random.randrange(256) for _ in range(64)))
            case "deafen":
                self._deaf |= self._sockets
            case "ping":
                for socket in list(self._sockets):
                    with contextlib.suppress(ConnectionError):
                        await socket.ping(b"123456")
            case "erase":
                self.market.erase(now + SECOND, int(ill.number("count")))
            case "correct":
                self.market.correct(now - int(ill.number("back")) * SECOND)

    async def _drop(self, socket: web.WebSocketResponse, code: int) -> None:
        if code:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await socket.close(code=code)
        elif (transport := self._transports.get(socket)) is not None:
            transport.abort()


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
