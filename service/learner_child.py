"""LearnerChild: a process that is to hold a learner, from its start until it is gone; and our end of its socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from service.learner_process import HEADER, Reply, Request, decode, encode
from service.ports import LearnerUnavailable


@dataclass(frozen=True, eq=False)
class LearnerChild:
    """A running child. It imports the learning core on its own; requests wait in ``sock``, our end, until it has."""

    process: subprocess.Popen[bytes]
    sock: socket.socket

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it now, whatever it does."""
        self.process.kill()

    async def gone(self) -> str:
        """Return why it ended, when it has."""
        code = await asyncio.to_thread(self.process.wait)
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def discard(self) -> None:
        """Leave nothing of it."""
        self.kill()
        self.process.wait()
        self.sock.close()


def start_child() -> LearnerChild:
    """Start a child; it takes seconds of its own to be ready, so the earlier the better."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", f"from service.learner_process import main; main({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    ours.setblocking(False)
    return LearnerChild(process, ours)


class Replies(asyncio.Protocol):
    """Our end of the socket pair: matches replies with the calls that wait for them."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    async def ask(self, request: Request) -> Reply:
        """Send and wait. Raises LearnerUnavailable when the child is lost meanwhile."""
        if self._transport is None or self._transport.is_closing():
            raise LearnerUnavailable("the learner is restarting")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        try:
            self._transport.write(encode(request))
            return await future
        finally:
            self._waiting.pop(request.id, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports in all but class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if len(self._buffer) < HEADER.size + length:
                return
            reply: Reply = decode(bytes(self._buffer[HEADER.size : HEADER.size + length]))
            del self._buffer[: HEADER.size + length]
            future = self._waiting.get(reply.id)
            if future is not None and not future.done():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LearnerUnavailable("the learner died and is being restarted"))
        if not self.lost.done():
            self.lost.set_result(None)
