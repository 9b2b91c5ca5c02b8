"""The child process that owns the device and the Learner: one request at a time, live candles before previews.

Started by ``worker.py``, which calls ``main``. Requests and answers cross an anonymous socket
pair; when the parent is gone the socket ends and so does this process.
"""

from __future__ import annotations

import itertools
import pickle  # nosec B403 - both ends are this program, over a socket pair nobody else can open
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from models.candle import Candle
from models.config import LearnerConfig
from models.records import PREVIEW_CANDLES, Learned, Prediction, ScoreWindow
from service.clock import now_ms

if TYPE_CHECKING:
    from models.learner import Learner

HEADER = struct.Struct("!Q")
PREVIEWS_AT_ONCE = 8
PREVIEW_CANDLES_AT_ONCE = PREVIEW_CANDLES
"""How many waiting previews, with how many candles in all, are answered before live requests are looked for again.

Reading the candles is what costs: a live candle waits no longer than one long preview takes.
"""


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """``error`` is None, or ``(class name, message)`` of an expected refusal; a bug ends the process instead."""

    id: int
    value: Any = None
    error: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LearnReply:
    learned: Learned
    short_score: dict[str, Any]


def encode(message: Request | Reply) -> bytes:
    """Return the message as one frame: eight bytes of length, then the pickle."""
    body = pickle.dumps(message, protocol=5)
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> Any:
    return pickle.loads(body)  # noqa: S301  # nosec B301 - see the import


class LearnerServer:
    """Answers requests on one Learner. Timings are added here because the learning core has no clock."""

    def __init__(self) -> None:
        self._learner: Learner | None = None
        self._infer_ms = 0.0

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise RuntimeError("the first request must be start")
        return self._learner

    def handle(self, request: Request) -> Reply:
        """Answer one request. Expected refusals become errors in the reply."""
        from models.checkpoint import DamagedCheckpoint, IncompatibleState

        try:
            return Reply(request.id, getattr(self, f"do_{request.method}")(*request.args))
        except (DamagedCheckpoint, IncompatibleState) as error:
            return Reply(request.id, error=(type(error).__name__, str(error)))

    def do_start(self, config: LearnerConfig, checkpoint: bytes | None) -> dict[str, Any]:
        """Make the learner, from ``checkpoint`` where given; answers ``describe()``."""
        import torch

        from models.checkpoint import load_state
        from models.learner import Learner

        torch.set_num_threads(1)  # one core, and the same order of additions every time: bit-equal steps
        if config.device == "auto":
            config = replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
        learner = Learner(config)
        if checkpoint is not None:
            learner.load_state_dict(load_state(checkpoint))
        self._learner = learner
        return learner.describe()

    def do_predict(self, candle: Candle) -> Prediction:
        started = time.perf_counter()
        prediction = self.learner.predict(candle, now_ms())
        self._infer_ms = (time.perf_counter() - started) * 1000
        return prediction

    def do_learn(self, candle: Candle) -> LearnReply:
        started = time.perf_counter()
        learned = self.learner.learn(candle)
        train_ms = (time.perf_counter() - started) * 1000
        step = replace(learned.step, infer_ms=round(self._infer_ms, 4), train_ms=round(train_ms, 4))
        return LearnReply(replace(learned, step=step), self.learner.short_score())

    def do_checkpoint(self) -> tuple[int | None, int, bytes]:
        """Answer (open_time of the last candle learned, steps made, the whole state)."""
        from models.checkpoint import dump_state

        return self.learner.last_open_time, self.learner.step, dump_state(self.learner.state_dict())

    def do_score(self, window: ScoreWindow, live: bool) -> dict[str, Any]:
        return self.learner.score(window, live)

    def do_describe(self) -> dict[str, Any]:
        return self.learner.describe()

    def do_weights_hash(self) -> str:
        return self.learner.weights_hash()

    def do_pause(self) -> None:
        self.learner.pause()

    def do_resume(self) -> None:
        self.learner.resume()

    def previews(self, requests: list[Request]) -> Iterable[Reply]:
        """Answer several previews with one batched forward."""
        answers = self.learner.preview_many([request.args[0] for request in requests], now_ms())
        return [Reply(request.id, answer) for request, answer in zip(requests, answers, strict=True)]


class Connection:
    """The child's end of the socket pair: blocking, buffered by us so that waiting requests can be seen."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def receive(self) -> Request | None:
        """Wait for one request; None when the parent is gone."""
        header = self._exactly(HEADER.size)
        body = self._exactly(HEADER.unpack(header)[0]) if header else None
        request: Request | None = decode(body) if body else None
        return request

    def waiting(self) -> bool:
        return bool(select.select([self._sock], [], [], 0)[0])

    def send(self, reply: Reply) -> None:
        self._sock.sendall(encode(reply))

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = self._sock.recv(min(count - len(data), 1 << 20))
            if not part:
                return None
            data += part
        return bytes(data)


def serve(connection: Connection, server: LearnerServer) -> None:
    """Answer until the parent is gone: everything about live candles first, then a few previews, and look again."""
    previews: list[Request] = []
    while True:
        while not previews or connection.waiting():
            request = connection.receive()
            if request is None:
                return
            if request.method == "preview":
                previews.append(request)
            else:
                connection.send(server.handle(request))
        count = at_once([len(request.args[0]) for request in previews])
        batch, previews = previews[:count], previews[count:]
        for reply in server.previews(batch):
            connection.send(reply)


def at_once(sizes: Sequence[int]) -> int:
    """Tell how many of the first previews, of ``sizes`` candles, make one batch: at least one."""
    totals = itertools.accumulate(sizes[:PREVIEWS_AT_ONCE])
    return max(1, sum(total <= PREVIEW_CANDLES_AT_ONCE for total in totals))


def main(fd: int) -> None:
    """Serve on the inherited socket ``fd``; Ctrl-C and SIGTERM, sent to the whole group, are the parent's."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    import models.learner  # noqa: F401 - takes seconds: now, before it is asked for

    with socket.socket(fileno=fd) as sock:
        try:
            serve(Connection(sock), LearnerServer())
        except (BrokenPipeError, ConnectionResetError):
            return
