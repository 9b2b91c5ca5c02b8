"""The listening socket and the uvicorn settings that cut off clients who do not read or do not finish asking."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from service.ports import ConfigurationError

if sys.platform != "win32":
    import resource

USER_TIMEOUT_MS = 6_000
"""How long sent data may stay unacknowledged or unread. The kernel notices at its next probe: in all within 13 s."""
SEND_BUFFER_BYTES = 256 * 1024
HEADER_SECONDS = 10.0
PING_SECONDS = 5.0
CLOSE_SECONDS = 1.0
MAX_CLIENT_FRAME_BYTES = 4096
MAX_CONNECTIONS = 5_000
DESCRIPTORS_KEPT = 200
GOING_AWAY = 1001
INVALID_DATA = 1007


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket (``port`` 0: any free one); raise ConfigurationError when that cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise ConfigurationError(f"LIVEWICK_HOST: no address found for {host!r}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        _configure(listener)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_why_not(host, port, error)) from error
    listener.setblocking(False)
    return listener


def _configure(listener: socket.socket) -> None:
    """Set what every accepted connection inherits."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"LIVEWICK_PORT: {port} on {host} is in use by another program"
    if error.errno == errno.EACCES:
        return f"LIVEWICK_PORT: {port} needs privileges; choose one above 1023"
    return f"LIVEWICK_HOST, LIVEWICK_PORT: cannot listen on {host} port {port}: {error.strerror}"


def server_config(app: FastAPI, graceful_seconds: int = 3) -> uvicorn.Config:
    """Return the uvicorn settings the API needs; serve with ``uvicorn.Server(config).serve([listen(host, port)])``.

    Proxy headers are off here: create_api believes them only from the proxies it was told to trust. uvicorn's own
    access log would write query strings, so it is off as well.
    """
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_CLIENT_FRAME_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=graceful_seconds,
    )


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
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast(asyncio.Transport, transport).abort()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which also drops connections whose request headers do not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request; drop the connection at once when there are too many."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            reset(transport)
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start the clock for the request that begins."""
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        """Stop the clock: the request is here."""
        self._stop_clock()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(HEADER_SECONDS, reset, self.transport)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which never waits for a client that does not read.

    It hands ``livewick.abort`` to the application, follows its own closes by a reset, and says 1001 at shutdown.
    """

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
