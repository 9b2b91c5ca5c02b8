"""The listening socket and the uvicorn settings that cut off clients who do not read or do not finish asking."""

from __future__ import annotations

import errno
import socket

import uvicorn
from fastapi import FastAPI

from service.api.protocols import HttpProtocol, WebSocketProtocol
from service.ports import ConfigurationError

USER_TIMEOUT_MS = 6_000
"""How long sent data may stay unacknowledged or unread. The kernel notices at its next probe: in all within 13 s."""
SEND_BUFFER_BYTES = 256 * 1024
PING_SECONDS = 5.0
MAX_CLIENT_FRAME_BYTES = 4096


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
