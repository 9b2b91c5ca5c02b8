"""The WebSocket side: subscriptions, and the frames each second brings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import WSMessage, WSMsgType, web

from service.simulator.clock import SimulatedClock
from service.simulator.disturb import Disturber, Outgoing
from service.simulator.faults import FaultBook
from service.simulator.market import SECOND_MS, Second
from service.simulator.session import Session
from service.simulator.tape import INTERVALS_MS
from service.simulator.trades import trade_frame, trades_of
from service.simulator.truth import Truth
from service.simulator.wire import error, kline_frame, partial

PING_SECONDS = 20.0
_STREAM = re.compile(r"^(?P<id>[a-z0-9]+)@(?:kline_(?P<interval>\w+)|trade)$")
_LOOK_SECONDS = 0.02


class Sockets:
    """All sessions; ``run`` pushes every candle to whoever subscribed, as time goes by.

    ``at_point`` is awaited after the half-way and after the final frames of each second: there one-time faults happen.
    """

    def __init__(
        self, clock: SimulatedClock, truth: Truth, book: FaultBook, at_point: Callable[[], Awaitable[None]]
    ) -> None:
        self.sessions: set[Session] = set()
        self.disturber = Disturber(book)
        self._clock = clock
        self._truth = truth
        self._book = book
        self._at_point = at_point
        self._start_ms = clock.now_ms()

    # --- one client ---------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one client until it leaves."""
        while self._silent() or self._on("ws_hang"):  # noqa: ASYNC110 - faults end by the exchange's own clock
            await asyncio.sleep(_LOOK_SECONDS)
        if (refusal := self._book.active("ws_status", self._now())) is not None:
            wait = refusal.options.get("retry_after")
            headers = {} if wait is None else {"Retry-After": str(wait)}
            return web.json_response(error(0, "Unavailable."), status=refusal.option("status", 503), headers=headers)
        socket = web.WebSocketResponse(heartbeat=PING_SECONDS, compress=False, autoping=False)
        try:
            await socket.prepare(request)
        except ConnectionError:  # the client gave up while its handshake hung
            return web.Response()
        session = Session(socket, request)
        session.streams.update(self._known([request.match_info.get("stream", "")]))
        self.sessions.add(session)
        sender = asyncio.create_task(session.send_for_ever(), name="simulator-sender")
        try:
            async for message in socket:
                await self._take(session, message)
        finally:
            self.sessions.discard(session)
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sender
        return socket

    async def _take(self, session: Session, message: WSMessage) -> None:
        if self._silent():
            return
        if message.type is WSMsgType.PING:
            with contextlib.suppress(ConnectionError):
                await session.socket.pong(message.data)
        elif message.type is WSMsgType.TEXT:
            session.push(json.dumps(self._answer(session, message.data)))

    def _answer(self, session: Session, text: str) -> dict[str, Any]:
        try:
            request = json.loads(text)
            method, params, id_ = request["method"], request.get("params", []), request.get("id")
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"error": {"code": 3, "msg": "Invalid JSON: expected value at line 1 column 1"}}
        if method == "SUBSCRIBE" and self._on("subscribe_refused"):
            return {"error": {"code": 2, "msg": "Invalid request: too many parameters"}, "id": id_}
        if method == "SUBSCRIBE":
            session.streams.update(self._known(params))
        elif method == "UNSUBSCRIBE":
            session.streams.difference_update(params)
        elif method == "LIST_SUBSCRIPTIONS":
            return {"result": sorted(session.streams), "id": id_}
        else:
            return {"error": {"code": 2, "msg": f"Invalid request: unknown variant {method}"}, "id": id_}
        return {"result": None, "id": id_}

    def _known(self, streams: Iterable[str]) -> list[str]:
        """Keep the streams that exist; the real exchange acknowledges the others too, and sends nothing."""
        found = [match for match in map(_STREAM.match, streams) if match is not None]
        return [
            m[0] for m in found if m["id"].upper() in self._truth.symbols and m["interval"] in {None, *INTERVALS_MS}
        ]

    # --- all clients --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Push half-way and final frames of each second until cancelled."""
        second = int(self._clock.now_ms()) // SECOND_MS * SECOND_MS
        while True:
            await self._clock.sleep_until(second + SECOND_MS / 2)
            self._push_partials(second)
            await self._point()
            second += SECOND_MS
            await self._clock.sleep_until(second)
            self._push_second(second)
            await self._point()

    def send(self, frames: Iterable[Outgoing]) -> None:
        """Send frames now, or when their delay is over."""
        loop = asyncio.get_running_loop()
        for frame in frames:
            if frame.delay_ms:
                loop.call_later(frame.delay_ms / 1_000 / self._clock.speed, self._deliver, frame)
            else:
                self._deliver(frame)

    def push_candle(self, id_: str, candle: Second) -> None:
        """Send a closed second's final frame, undisturbed: a late correction."""
        frame = kline_frame(id_, "1s", SECOND_MS, candle, closed=True, event_ms=int(self._clock.now_ms()))
        self.send([Outgoing(f"{id_.lower()}@kline_1s", json.dumps(frame))])

    async def _point(self) -> None:
        if self._on("zombie"):
            for session in self.sessions:
                session.dead = True
        self.send(self.disturber.release(self._now()))
        await self._at_point()

    def _push_partials(self, open_time: int) -> None:
        self._push_trades(open_time, 0, SECOND_MS // 2)
        for stream, id_ in self._wanted("1s"):
            candle = self._truth.candle(id_, open_time, SECOND_MS)
            if candle is not None:
                frame = kline_frame(id_, "1s", SECOND_MS, partial(candle), closed=False, event_ms=open_time + 500)
                self.send(self.disturber.partial(stream, frame, self._now()))

    def _push_second(self, now: int) -> None:
        """Push what the second that ended at ``now`` did to every subscribed candle."""
        self._push_trades(now - SECOND_MS, SECOND_MS // 2, SECOND_MS)
        for interval, interval_ms in INTERVALS_MS.items():
            for stream, id_ in self._wanted(interval):
                open_time = (now - 1) // interval_ms * interval_ms
                closed = now % interval_ms == 0
                candle = self._truth.candle(id_, open_time, interval_ms, None if closed else now - 1)
                if candle is None:
                    continue
                frame = kline_frame(id_, interval, interval_ms, candle, closed=closed, event_ms=now + 1)
                push = self.disturber.final if closed else self.disturber.partial
                self.send(push(stream, frame, self._now()))

    def _push_trades(self, open_time: int, first_ms: int, end_ms: int) -> None:
        """Push the trades of one second made from ``first_ms`` to ``end_ms`` (exclusive) after its start."""
        for stream, id_ in self._wanted(None):
            second = self._truth.candle(id_, open_time, SECOND_MS)
            for trade in trades_of(second) if second is not None else ():
                if first_ms <= trade["T"] - open_time < end_ms:
                    frame = trade_frame(id_, trade, event_ms=open_time + end_ms)
                    self.send(self.disturber.partial(stream, frame, self._now()))

    def _wanted(self, interval: str | None) -> Iterable[tuple[str, str]]:
        streams = sorted({stream for session in self.sessions for stream in session.streams})
        for stream in streams:
            match = _STREAM.match(stream)
            if match is not None and match["interval"] == interval:
                yield stream, match["id"].upper()

    def _deliver(self, frame: Outgoing) -> None:
        if self._silent():
            return
        for session in list(self.sessions):
            if not session.dead and (frame.stream is None or frame.stream in session.streams):
                session.push(frame.data)

    def _now(self) -> float:
        return self._clock.now_ms() - self._start_ms

    def _on(self, kind: str) -> bool:
        return self._book.active(kind, self._now()) is not None

    def _silent(self) -> bool:
        return self._on("black_hole") or self._on("cut")
