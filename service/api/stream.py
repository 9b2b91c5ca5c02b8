"""The WebSocket: hello, then every frame as it is published, until the client leaves or stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import structlog
from fastapi import APIRouter, WebSocket
from starlette.datastructures import QueryParams
from starlette.websockets import WebSocketDisconnect, WebSocketState

from service.api.answers import LAST_TIME
from service.api.deps import ApiDeps, api_deps, find_market, refuse_odd_parameters
from service.api.limits import SocketLimit, TooManySockets
from service.api.metrics import Metrics
from service.api.problem import Problem
from service.api.security import Tickets
from service.broadcast import FRAME_KINDS, Subscription
from service.strict_json import InvalidJSON, decode, encode

router = APIRouter()
log = structlog.get_logger(__name__)
PROTOCOL = 1
BURST = 32
"""Frames sent to one client before the others get their turn, when it has many to catch up on."""
GOING_AWAY, POLICY_VIOLATION = 1001, 1008
PONG = '{"type":"pong"}'


class End(Enum):
    """Why a connection ended."""

    CLIENT_LEFT = auto()
    BAD_FRAME = auto()
    UNKNOWN_MARKET = auto()
    NOT_READING = auto()
    SHUTDOWN = auto()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asked for; None means all, or from now on."""

    markets: frozenset[str] | None
    kinds: frozenset[str] | None
    after: int | None

    def check(self, deps: ApiDeps) -> None:
        """Raise the Problem of a market that is not followed: told to nobody who has not shown a key or a ticket."""
        for market in self.markets or ():
            find_market(deps, market)


@router.websocket("/ws")
async def follow(websocket: WebSocket) -> None:
    """Follow predictions, steps and events as they happen."""
    deps = await api_deps(websocket)
    sockets: SocketLimit = websocket.app.state.sockets
    try:
        wanted = parse_wanted(websocket.query_params)
        if websocket.scope["livewick.authenticated"]:
            wanted.check(deps)
        with sockets.hold(websocket.scope["livewick.caller"]):
            await _Connection(websocket, deps).serve(wanted)
    except TooManySockets:
        problem = Problem(503, "Too many connections", "Too many WebSockets are open.", retry_after=30)
        await _deny(websocket, problem)
    except Problem as problem:
        await _deny(websocket, problem)


async def _deny(websocket: WebSocket, problem: Problem) -> None:
    """Answer the handshake with a problem instead of an upgrade."""
    await websocket.send_denial_response(problem.response(websocket.scope["state"].get("request_id")))


def parse_wanted(query: QueryParams) -> Wanted:
    """Read market, kinds and after, or raise the Problem."""
    refuse_odd_parameters(query, {"market", "kinds", "after"})
    market, kinds, after = query.get("market"), query.get("kinds"), query.get("after")
    names = None if kinds is None else frozenset(kinds.split(","))
    if names is not None and not names <= set(FRAME_KINDS):
        raise Problem(422, "Unknown kind", "kinds: a comma list of " + ", ".join(FRAME_KINDS) + " is needed.")
    return Wanted(None if market is None else frozenset({market}), names, _after(after))


def _after(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= LAST_TIME):
        raise Problem(422, "Invalid after", "after: the seq of a frame is needed.")
    return int(text)


def parse_client_frame(text: str) -> dict[str, Any] | None:
    """Return a client's frame if it is `{"type":"ping"}` or `{"type":"auth","ticket":STRING}`, else None."""
    try:
        frame = decode(text)
    except (InvalidJSON, UnicodeEncodeError):
        return None
    if frame == {"type": "ping"}:
        return {"type": "ping"}
    is_auth = isinstance(frame, dict) and frame.keys() == {"type", "ticket"} and frame["type"] == "auth"
    return frame if is_auth and isinstance(frame["ticket"], str) else None


class _Connection:
    """One accepted client."""

    def __init__(self, websocket: WebSocket, deps: ApiDeps) -> None:
        self._websocket = websocket
        self._deps = deps
        self._metrics: Metrics = websocket.app.state.metrics

    async def serve(self, wanted: Wanted) -> None:
        """Accept, check the ticket where keys are set, send until the end, close with the code that fits it."""
        try:
            await self._websocket.accept()
            end = None if self._websocket.scope["livewick.authenticated"] else await self._check_ticket(wanted)
            if end is None:
                with self._deps.broadcaster.subscribe(wanted.after, wanted.markets, wanted.kinds) as subscription:
                    end = await _first_of(self._send_frames(subscription), self._receive())
        except WebSocketDisconnect:
            end = End.CLIENT_LEFT
        await self._finish(end)

    async def _check_ticket(self, wanted: Wanted) -> End | None:
        """Wait for the auth frame; None when its ticket is right and what is wanted is there."""
        tickets: Tickets = self._websocket.app.state.tickets
        try:
            async with asyncio.timeout(self._deps.options.auth_seconds):
                message = await self._websocket.receive()
        except TimeoutError:
            return End.BAD_FRAME
        if message["type"] == "websocket.disconnect":
            return End.CLIENT_LEFT
        frame = parse_client_frame(message.get("text") or "")
        right = frame is not None and frame["type"] == "auth" and tickets.redeem(frame["ticket"])
        if not right:
            return End.BAD_FRAME
        try:
            wanted.check(self._deps)
        except Problem:
            return End.UNKNOWN_MARKET
        return None

    async def _send_frames(self, subscription: Subscription) -> End:
        hello = {"type": "hello", "protocol": PROTOCOL, "seq": subscription.started_at}
        if not await self._send(encode({**hello, "markets": list(self._deps.markets)}).decode()):
            return End.NOT_READING
        sent = 0
        async for text in subscription:
            if not await self._send(text):
                return End.NOT_READING
            sent += 1
            if sent % BURST == 0:
                await asyncio.sleep(0)
        return End.SHUTDOWN

    async def _receive(self) -> End:
        """Answer pings until the client leaves or sends anything else; beside the sender: a close is seen at once."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return End.CLIENT_LEFT
            if parse_client_frame(message.get("text") or "") != {"type": "ping"}:
                return End.BAD_FRAME
            if not await self._send(PONG):
                return End.NOT_READING

    async def _send(self, text: str) -> bool:
        """Send one text; False when the client did not make room for it in time."""
        try:
            async with asyncio.timeout(self._deps.options.send_seconds):
                await self._websocket.send({"type": "websocket.send", "text": text})
        except TimeoutError:
            return False
        self._metrics.sent(text)
        return True

    async def _finish(self, end: End) -> None:
        self._metrics.socket_ends.labels(end.name.lower()).inc()
        log.debug("websocket ended", why=end.name.lower())
        if end is End.NOT_READING:
            self._abort()
        elif end is not End.CLIENT_LEFT:
            reason = "unknown market" if end is End.UNKNOWN_MARKET else None
            await self._close(GOING_AWAY if end is End.SHUTDOWN else POLICY_VIOLATION, reason)

    async def _close(self, code: int, reason: str | None) -> None:
        if self._websocket.client_state is WebSocketState.DISCONNECTED:
            return
        try:
            async with asyncio.timeout(1):
                await self._websocket.close(code, reason)
        except TimeoutError:
            self._abort()
        except WebSocketDisconnect:
            return

    def _abort(self) -> None:
        """Drop the connection without waiting for what is still buffered, as a close would."""
        abort = self._websocket.scope.get("extensions", {}).get("livewick.abort")
        if abort is not None:
            abort()


async def _first_of(*coroutines: Coroutine[Any, Any, End]) -> End:
    """Run all until one ends, cancel the others, return the end of the first; errors propagate."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return _result(results)


def _result(results: list[End | BaseException]) -> End:
    ends = [result for result in results if isinstance(result, End)]
    errors = [
        result
        for result in results
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | WebSocketDisconnect)
    ]
    if errors:
        raise errors[0]
    return ends[0] if ends else End.CLIENT_LEFT
