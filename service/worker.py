"""LearnerWorker: keeps one child process with the learner alive, and its state exact across the child's deaths."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from models.candle import Candle
from models.config import LearnerConfig
from models.records import PREVIEW_CANDLES, Learned, Prediction, ScoreWindow
from service.learner_child import LearnerChild, Replies, start_child
from service.learner_process import LearnReply, Request
from service.ports import RETRY_SECONDS, CheckpointRefused, LearnerUnavailable, LivewickError

log = structlog.get_logger(__name__)


class LearnerKeepsDying(LivewickError):
    """The child died too often in a minute: a person has to look."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """``hang_seconds``: a live call without an answer for so long means the child hangs, and it is killed.

    After a death at most about ``replay_seconds`` of work is done again, or ``replay_checkpoints`` times what a
    checkpoint takes where that is longer.
    """

    start_seconds: float = 90.0
    hang_seconds: float = 3.0
    replay_seconds: float = 1.0
    replay_checkpoints: float = 50.0
    preview_seconds: float = 10.0
    deaths: int = 5
    deaths_window_seconds: float = 60.0
    previews_waiting: int = 64


class LearnerWorker:
    """The learner in its own process.

    After a death the child is started again from the last checkpoint, and every call acknowledged since is made again
    in order. Steps are deterministic, so its state is then the one that was lost, and nobody outside has to know more
    than "try again".
    """

    def __init__(
        self, config: LearnerConfig, limits: WorkerLimits | None = None, first: LearnerChild | None = None
    ) -> None:
        """``first`` is a child that was started while there was something else to do; it is ours from now on."""
        self._config = config
        self._spare = first
        self._limits = limits or WorkerLimits()
        self.on_restart: Callable[[str], None] = lambda _reason: None
        self._child: LearnerChild | None = None
        self._replies: Replies | None = None
        self._connected = asyncio.Event()
        self._ready = asyncio.Event()
        # Held while the child gets a state: a restart and a load must not both give it one.
        self._starting = asyncio.Lock()
        self._base: bytes | None = None
        self._loaded = False
        # Calls acknowledged since the last checkpoint, and the time they took; ``learn`` takes a checkpoint at a bound.
        self._journal: list[tuple[str, tuple[Any, ...]]] = []
        self._journal_seconds = 0.0
        self._checkpoint_seconds = 0.0
        self._deaths: deque[float] = deque(maxlen=self._limits.deaths)
        # At most so many previews in flight; further ones wait for a place.
        self._preview_places = asyncio.Semaphore(self._limits.previews_waiting)
        self._next_id = 0
        self.restarts = 0
        self.short_score: dict[str, Any] | None = None

    @property
    def alive(self) -> bool:
        """Whether the learner would answer now."""
        return self._ready.is_set()

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return self._child.process.pid if self._child and self._child.alive else None

    async def run(self) -> None:
        """Keep the child running for ever. Raises LearnerKeepsDying."""
        try:
            while True:
                replies = await self._spawn()
                try:
                    if self._loaded:
                        await self._restore()
                except (LearnerUnavailable, CheckpointRefused) as error:
                    log.warning("learner could not be restored", error=str(error))
                    self._kill()
                await replies.lost
                await self._bury()
        finally:
            await self._stop()

    async def ready(self) -> None:
        """Return when the child is up and holds the state of the last acknowledged call."""
        await self._ready.wait()

    async def load(self, checkpoint: bytes | None) -> dict[str, Any]:
        """Start the learner afresh or from ``checkpoint``; returns its description. Raises CheckpointRefused."""
        while True:
            await self._connected.wait()
            try:
                async with self._starting:
                    self._ready.clear()
                    description = await self._start(checkpoint)
                    self._loaded = True
                    self._begin_journal(checkpoint)
                    self._ready.set()
                    return description
            except LearnerUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            except CheckpointRefused:
                if self._loaded:
                    self._ready.set()
                raise

    async def predict(self, candle: Candle) -> Prediction:
        prediction: Prediction = await self._live("predict", candle, journal=True)
        return prediction

    async def learn(self, candle: Candle) -> Learned:
        reply: LearnReply = await self._live("learn", candle, journal=True)
        self.short_score = reply.short_score
        worth_it = self._limits.replay_checkpoints * self._checkpoint_seconds
        if self._journal_seconds > max(self._limits.replay_seconds, worth_it):
            # The candle is learned, in the journal: a death meanwhile is no reason to learn it again.
            with contextlib.suppress(LearnerUnavailable):
                await self.checkpoint()
        return reply.learned

    async def pause(self) -> None:
        await self._live("pause", journal=True)

    async def resume(self) -> None:
        await self._live("resume", journal=True)

    async def checkpoint(self) -> tuple[int | None, int, bytes]:
        """Return (last open_time learned, steps, state); from now on restarts begin here.

        Must not overlap another call that changes the learner.
        """
        started = time.monotonic()
        open_time, step, data = await self._live("checkpoint", seconds=self._limits.start_seconds)
        self._checkpoint_seconds = time.monotonic() - started
        self._begin_journal(data)
        return open_time, step, data

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        """Answer a POST /predict; waiting ones are answered together and after anything live."""
        async with self._preview_places:
            self._require_ready()
            read = tuple(candles[-PREVIEW_CANDLES:])
            try:
                prediction: Prediction = await self._call("preview", (read,), self._limits.preview_seconds)
            except TimeoutError:
                raise LearnerUnavailable("the learner is too busy to answer previews", 2) from None
            return prediction

    async def score(self, window: ScoreWindow, live: bool) -> dict[str, Any]:
        score: dict[str, Any] = await self._live("score", window, live)
        return score

    async def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = await self._live("describe")
        return description

    async def weights_hash(self) -> str:
        """Return the hash over every weight and optimizer value."""
        value: str = await self._live("weights_hash")
        return value

    async def _live(self, method: str, *args: Any, journal: bool = False, seconds: float | None = None) -> Any:
        self._require_ready()
        started = time.monotonic()
        value = await self._call_or_kill(method, args, seconds or self._limits.hang_seconds)
        if journal:
            self._journal.append((method, args))
            self._journal_seconds += time.monotonic() - started
        return value

    def _begin_journal(self, base: bytes | None) -> None:
        """From now on a restart begins with this state."""
        self._base = base
        self._journal.clear()
        self._journal_seconds = 0.0

    def _require_ready(self) -> None:
        if not self._ready.is_set():
            raise LearnerUnavailable("the learner is starting")

    async def _start(self, checkpoint: bytes | None) -> dict[str, Any]:
        description: dict[str, Any] = await self._call_or_kill(
            "start", (self._config, checkpoint), self._limits.start_seconds
        )
        return description

    async def _restore(self) -> None:
        async with self._starting:
            await self._start(self._base)
            for method, args in self._journal:
                await self._call_or_kill(method, args, self._limits.hang_seconds)
            self._ready.set()

    async def _call_or_kill(self, method: str, args: tuple[Any, ...], seconds: float) -> Any:
        late = asyncio.get_running_loop().call_later(seconds / 3, self._prepare)
        try:
            value = await self._call(method, args, seconds)
            self._discard_spare()
            return value
        except TimeoutError:
            log.warning("learner hangs and is killed", method=method, after_seconds=seconds)
            self._kill()
            raise LearnerUnavailable("the learner hung and is being restarted") from None
        finally:
            late.cancel()

    def _prepare(self) -> None:
        """Start the next child already: it will be needed if the one that is late does not answer."""
        if self._spare is None:
            self._spare = start_child()

    def _discard_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.discard()

    async def _call(self, method: str, args: tuple[Any, ...], seconds: float) -> Any:
        if self._replies is None:
            raise LearnerUnavailable("the learner is starting")
        self._next_id += 1
        async with asyncio.timeout(seconds):
            reply = await self._replies.ask(Request(self._next_id, method, args))
        if reply.error is not None:
            raise CheckpointRefused(f"{reply.error[0]}: {reply.error[1]}")
        return reply.value

    async def _spawn(self) -> Replies:
        spare, self._spare = self._spare, None
        self._child = spare or start_child()
        loop = asyncio.get_running_loop()
        _, self._replies = await loop.create_connection(lambda: Replies(self._disconnected), sock=self._child.sock)
        self._connected.set()
        return self._replies

    def _disconnected(self) -> None:
        self._ready.clear()
        self._connected.clear()

    def _kill(self) -> None:
        self._disconnected()
        if self._child is not None:
            self._child.kill()

    async def _bury(self) -> None:
        """Reap the dead child and count it. Raises LearnerKeepsDying."""
        self._replies = None
        self._kill()
        reason = await self._child.gone() if self._child else "never started"
        self.restarts += 1
        self._deaths.append(time.monotonic())
        if self._loaded:
            self.on_restart(reason)
        log.warning("learner process ended and is started again", reason=reason, restarts=self.restarts)
        window = self._limits.deaths_window_seconds
        if len(self._deaths) == self._limits.deaths and self._deaths[-1] - self._deaths[0] <= window:
            raise LearnerKeepsDying(f"the learner died {len(self._deaths)} times within {window:.0f} s, last: {reason}")

    async def _stop(self) -> None:
        if self._replies is not None:
            self._replies.close()
        self._kill()
        if self._child is not None:
            await self._child.gone()
        self._discard_spare()
