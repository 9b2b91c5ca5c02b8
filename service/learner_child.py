"""LearnerChild: a process that is to hold a learner, from its start until it is gone."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass


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
