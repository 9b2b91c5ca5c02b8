"""uvicorn's two protocols, made to hold against clients who do not read, do not finish asking, or do not speak HTTP."""

from __future__ import annotations

import asyncio
import email.utils
import socket
import struct
import sys
from typing import Any, cast

from starlette.responses import Response
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Response as HandshakeResponse
from websockets.server import ServerProtocol

from service.api.limits import MAX_HEADER_BYTES, headers_too_large
from service.api.problem import Problem

if sys.platform != "win32":
    import resource

HEADER_SECONDS = 10.0
CLOSE_SECONDS = 1.0
MAX_CONNECTIONS = 5_000
DESCRIPTORS_KEPT = 200
GOING_AWAY = 1001
INVALID_DATA = 1007


def most_connections() -> int:
    """How many connections may be open: descriptors must be left for the database, the feed and files."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(MAX_CONNECTIONS, descriptors - DESCRIPTORS_KEPT))


def reset(transport: asyncio.BaseTransport) -> None:
    """Drop a connection at once: RST instead of waiting for a client to read what is buffered."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        if raw.fileno() < 0:
            return  # It has gone by itself.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast(asyncio.Transport, transport).abort()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a limit on the time and size of request headers, whose refusals are problems."""

    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request; drop the connection at once when there are too many."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            reset(transport)
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock, and tell the request being answered (uvicorn tells only the last one that came)."""
        self._stop_clock()
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and count what came while a request's headers were being waited for."""
        waited = self._deadline
        super().data_received(data)
        if waited is not None and waited is self._deadline:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(headers_too_large())

    def on_message_begin(self) -> None:
        """Start the clock for the request that begins."""
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        """Stop the clock: the request is here."""
        self._stop_clock()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, unless an answer on it is under way: that would lose its flow control."""
        if self.cycle is not None and not self.cycle.response_complete:
            reset(self.transport)
        else:
            super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has a path longer than the parser takes."""
        if len(getattr(self, "url", b"")) >= MAX_HEADER_BYTES - 1:
            self._refuse(headers_too_large())
        else:
            self._refuse(malformed())

    def _refuse(self, problem: Problem) -> None:
        """Answer and close; where another answer has begun, closing is all that can be said."""
        self._stop_clock()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_as_bytes(problem.response()))
        self.transport.close()

    def _expect_headers(self) -> None:
        self._stop_clock()
        self._header_bytes = 0
        self._deadline = self.loop.call_later(HEADER_SECONDS, reset, self.transport)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def malformed() -> Problem:
    """The answer to what is no HTTP."""
    return Problem(400, "Malformed request", "This is not a well-formed HTTP/1.1 request.")


def _as_bytes(response: Response) -> bytes:
    """Write an answer that closes its connection."""
    headers = [*response.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)


class ServerSide(ServerProtocol):
    """The websockets library's protocol, whose refusals of a handshake are problems."""

    def reject(self, status: Any, text: str) -> HandshakeResponse:
        """Answer a handshake that is none, or that the application refuses without saying more."""
        response = super().reject(status, text)
        detail = (
            "This is not a well-formed WebSocket handshake." if response.status_code < 500 else response.reason_phrase
        )
        problem = Problem(response.status_code, response.reason_phrase, detail).response()
        headers = Headers([("Date", email.utils.formatdate(usegmt=True)), ("Connection", "close")])
        headers.update(problem.headers.items())
        return HandshakeResponse(response.status_code, response.reason_phrase, headers, bytes(problem.body))

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """Close; a frame that is too large is one more that this service does not take: 1008 as for every such."""
        super().fail(CloseCode.POLICY_VIOLATION if code == CloseCode.MESSAGE_TOO_BIG else code, reason)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which never waits for a client that does not read.

    It hands ``livewick.abort`` to the application, follows its own closes by a reset, and says 1001 at shutdown.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = ServerSide(max_size=self.config.ws_max_size, logger=self.logger)

    def data_received(self, data: bytes) -> None:
        """Parse; answer a handshake that the parser gave up on (uvicorn would leave its client waiting)."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.handshake_initiated = True
            self.transport.write(b"".join(self.conn.data_to_send()) or _as_bytes(malformed().response()))
            self.transport.close()

    def handle_connect(self, event: Any) -> None:
        """Start the application, with the way to drop the connection in its scope."""
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            extensions = cast(dict[str, Any], scope["extensions"])
            extensions["livewick.abort"] = lambda: reset(self.transport)

    async def send(self, message: ASGISendEvent) -> None:
        """Send, or tell the application that its client is gone once a close was sent (uvicorn calls that a bug)."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)
        if self.close_sent:
            # uvicorn forgets this after a refusal with a body, and then logs that there was no answer.
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; text that is not UTF-8 closes with 1007 (uvicorn would log a traceback as well)."""
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(INVALID_DATA)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        """Close a client that did not answer a ping, and drop it if even that does not get through."""
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_SECONDS, reset, self.transport)

    def shutdown(self) -> None:
        """Say 1001, going away, and drop the connection a moment later."""
        if self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
            self.conn.send_close(GOING_AWAY)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
        else:
            super().shutdown()
        self.loop.call_later(CLOSE_SECONDS, reset, self.transport)
