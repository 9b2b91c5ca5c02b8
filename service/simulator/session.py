"""Session: one client's socket at the simulated exchange."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import struct

from aiohttp import web

SEND_QUEUE_FRAMES = 20_000
_CLOSE_SECONDS = 1.0


class Session:
    """What one client subscribed to, and what still has to be sent to it.

    ``dead``: the client will get no candle any more (the zombie fault).
    """

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.streams: set[str] = set()
        self.dead = False
        self._transport = request.transport
        # Full: the client does not read, and is dropped as the real exchange would.
        self._queue: asyncio.Queue[str | bytes] = asyncio.Queue(SEND_QUEUE_FRAMES)

    def push(self, data: str | bytes) -> None:
        try:
            self._queue.put_nowait(data)
        except asyncio.QueueFull:
            self.abort()

    def abort(self, *, reset: bool = True) -> None:
        """Cut the connection without a close frame: by RST, or by FIN where ``reset`` is false."""
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if reset and raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def close(self, code: int) -> None:
        """Close with a close frame, as a friendly server does."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.socket.close(code=code)

    async def send_for_ever(self) -> None:
        """Send what is pushed until cancelled or the client is gone."""
        with contextlib.suppress(ConnectionError):
            while True:
                data = await self._queue.get()
                await (self.socket.send_str(data) if isinstance(data, str) else self.socket.send_bytes(data))
