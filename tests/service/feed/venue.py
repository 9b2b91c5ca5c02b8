"""An exchange other than Binance on loopback: its trades, made up here, and the serving of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import WSMsgType, web

SECOND = 1_000
PUSH_SECONDS = 0.05
Json = Any


@dataclass(frozen=True, slots=True)
class Deal:
    """One trade; ``us`` is UTC microseconds."""

    id: int
    us: int
    price: str
    amount: str

    @property
    def iso(self) -> str:
        return datetime.fromtimestamp(self.us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + (
            f".{self.us % 1_000_000:06d}Z"
        )


class Tape:
    """All trades, made up as time goes on: bursts within a millisecond, and seconds without any."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.deals: list[Deal] = []
        self._price = 2_000_00
        self.until_us = 0

    def grow(self, until_us: int) -> None:
        while self.until_us < until_us:
            self.until_us += int(self._random.choice((40, 90, 300, 900, 2_900)) * 1_000 + self._random.random() * 999)
            us = self.until_us
            for _ in range(self._random.choice((1, 1, 2, 4))):
                self._price += self._random.randint(-3, 3)
                amount = f"{self._random.randint(1, 30_000) / 10_000:.4f}"
                us += self._random.choice((0, 0, 7))
                self.deals.append(Deal(len(self.deals) + 5_000_000, us, f"{self._price / 100:.2f}", amount))

    def row(self, open_time: int) -> tuple[float, float, float, float, float]:
        """Return open, high, low, close, volume of a second; flat where it had no trade."""
        there = [deal for deal in self.deals if deal.us // 1_000_000 * SECOND == open_time]
        if not there:
            before = [deal for deal in self.deals if deal.us // 1_000 < open_time]
            price = float(before[-1].price) if before else 0.0
            return price, price, price, price, 0.0
        prices = [float(deal.price) for deal in there]
        return prices[0], max(prices), min(prices), prices[-1], sum(float(deal.amount) for deal in there)


class Venue:
    """Serves one exchange's protocol; ``speed`` as in FeedTiming. ``forgetful``: REST tells the newest trades only."""

    symbol = "ETH/USDT"
    exchange = ""
    snapshot = 0
    forgetful = False

    def __init__(self, seed: int, speed: float) -> None:
        self.tape = Tape(seed)
        self.speed = speed
        self.base = ""
        self.down = False
        self.dials = 0
        self._begun_ms, self._begun = time.time() * 1_000, time.monotonic()
        self._sockets: set[web.WebSocketResponse] = set()
        self._told: set[web.WebSocketResponse] = set()
        self._shown = 0
        self.tape.until_us = int(self.now_ms() - 120_000) * 1_000
        self.tape.grow(int(self.now_ms() * 1_000))

    def now_ms(self) -> float:
        return self._begun_ms + (time.monotonic() - self._begun) * 1_000 * self.speed

    def happened(self) -> list[Deal]:
        now_us = int(self.now_ms() * 1_000)
        self.tape.grow(now_us)
        return [deal for deal in self.tape.deals if deal.us <= now_us]

    # --- what differs -------------------------------------------------------------------------------------------------

    def config(self) -> Json:
        raise NotImplementedError

    def answer(self, path: str, query: dict[str, str]) -> Json:
        raise NotImplementedError

    def hear(self, message: Json) -> tuple[list[Json], bool]:
        """Return what a message is answered, and whether it was a subscription."""
        raise NotImplementedError

    def frames(self, deals: Sequence[Deal], kind: str) -> list[Json]:
        raise NotImplementedError

    # --- serving ------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[Json]:
        """Serve; yields ccxt's configuration."""
        app = web.Application()
        app.router.add_route("*", "/ws{more:.*}", self._socket)
        app.router.add_route("*", "/{path:.*}", self._rest)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.base = f"127.0.0.1:{runner.addresses[0][1]}"
        pushing = asyncio.create_task(self._push())
        try:
            yield {**self.config(), "enableRateLimit": False}
        finally:
            pushing.cancel()
            await asyncio.wait([pushing])
            await self.drop()
            await runner.cleanup()
        if not pushing.cancelled():
            pushing.result()

    async def drop(self) -> None:
        for socket in list(self._sockets):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await socket.close(code=1001)

    async def _rest(self, request: web.Request) -> web.Response:
        if self.down:
            return web.Response(status=503, text="<html>", content_type="text/html")
        return web.json_response(self.answer("/" + request.match_info["path"], dict(request.query)))

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        self.dials += 1
        if self.down:
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            async for message in socket:
                if message.data == "ping":
                    await socket.send_str("pong")
                elif message.type is WSMsgType.TEXT:
                    await self._heard(socket, json.loads(message.data))
        finally:
            self._sockets.discard(socket)
            self._told.discard(socket)
        return socket

    async def _heard(self, socket: web.WebSocketResponse, message: Json) -> None:
        answers, subscribed = self.hear(message)
        if subscribed and self.snapshot:
            answers = answers + self.frames(
                self.tape.deals[max(0, self._shown - self.snapshot) : self._shown], "snapshot"
            )
        for answer in answers:
            await socket.send_json(answer)
        if subscribed:
            self._told.add(socket)

    async def _push(self) -> None:
        self._shown = len(self.happened())
        while True:
            await asyncio.sleep(PUSH_SECONDS)
            happened = self.happened()
            # The last trades come twice: an exchange may repeat itself.
            frames = self.frames(happened[max(0, self._shown - 2) :], "update")
            fresh, self._shown = len(happened) > self._shown, len(happened)
            for socket in list(self._told) if fresh else []:
                for frame in frames:
                    with contextlib.suppress(ConnectionError):
                        await socket.send_json(frame)
