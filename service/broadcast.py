"""Broadcaster: every frame encoded once, numbered, kept for a while, handed to all subscribers without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from service.ports import Publisher
from service.strict_json import encode

FrameKind = Literal["prediction", "step", "event"]
FRAME_KINDS: tuple[FrameKind, ...] = ("prediction", "step", "event")
Observer = Callable[[FrameKind, str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Frame:
    """One numbered message; ``text`` is its JSON, encoded once for everybody."""

    seq: int
    kind: FrameKind
    market: str
    text: str


class Broadcaster(Publisher):
    """Number frames, keep the last ``history`` of them in a ring, wake the subscribers.

    The ring is also every subscriber's queue: a subscriber is only a position in it, so nothing is copied, and what is
    replayed and what is live cannot overlap or leave a hole. Numbers are consecutive and start after ``first_seq``,
    which must be higher than any number of an earlier process (the start time in ms does, below 1,000 frames a second).
    """

    def __init__(self, first_seq: int, history: int = 8192, queue_limit: int = 512) -> None:
        if not 0 < queue_limit <= history:
            raise ValueError(f"queue_limit was {queue_limit}, not within 1..history ({history})")
        self.first_seq = first_seq
        self.last_seq = first_seq
        self.queue_limit = queue_limit
        self.closed = False
        # Bounded: the newest frame takes the place of the oldest; who still needed that one is told `missed`.
        self._ring: list[Frame | None] = [None] * history
        self._subscribers: set[Subscription] = set()
        self._observers: list[Observer] = []
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def subscribers(self) -> int:
        """How many subscriptions are open."""
        return len(self._subscribers)

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest frame still kept; one above ``last_seq`` before the first."""
        return max(self.first_seq + 1, self.last_seq - len(self._ring) + 1)

    def observe(self, observer: Observer) -> None:
        """Call ``observer(kind, market, body)`` at every publish, before subscribers wake; it may not wait or raise."""
        self._observers.append(observer)

    def publish(self, kind: FrameKind, market: str, body: dict[str, Any]) -> int:
        """Number the frame, encode it once, keep it, wake every subscriber; return its ``seq``. Never waits."""
        seq = self.last_seq + 1
        text = encode({"type": kind, "seq": seq, "market": market, **body}).decode()
        self._ring[seq % len(self._ring)] = Frame(seq, kind, market, text)
        self.last_seq = seq
        for observer in self._observers:
            observer(kind, market, body)
        for subscriber in self._subscribers:
            subscriber.wake()
        return seq

    @contextmanager
    def subscribe(
        self, after: int | None = None, markets: Collection[str] | None = None, kinds: Collection[str] | None = None
    ) -> Iterator[Subscription]:
        """Follow all frames, or those of these markets and kinds: from now on, or from the one after ``after``."""
        subscription = Subscription(self, after, markets, kinds)
        self._subscribers.add(subscription)
        self._empty.clear()
        try:
            yield subscription
        finally:
            self._subscribers.discard(subscription)
            if not self._subscribers:
                self._empty.set()

    def frame(self, seq: int) -> Frame | None:
        """Return frame ``seq`` while it is kept."""
        frame = self._ring[seq % len(self._ring)]
        return frame if frame is not None and frame.seq == seq else None

    async def close(self, timeout_seconds: float = 1.5) -> None:
        """End every subscription and wait, for at most ``timeout_seconds``, until their owners have let go of them."""
        self.closed = True
        for subscriber in list(self._subscribers):
            subscriber.wake()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._empty.wait()
        except TimeoutError:
            return  # An owner that is stuck in a send is cut off by its socket's own limits.


class Subscription:
    """One subscriber's position in the ring: iterate it for the texts to send.

    A subscriber that falls more than the queue limit behind loses what it did not take, except the newest frame, and
    gets ``{"type":"missed","from","to"}`` in its place. While it catches up after ``after`` it may use the whole ring.
    """

    def __init__(
        self, source: Broadcaster, after: int | None, markets: Collection[str] | None, kinds: Collection[str] | None
    ) -> None:
        self._source = source
        self._markets = None if markets is None else frozenset(markets)
        self._kinds = None if kinds is None else frozenset(kinds)
        self._woken = asyncio.Event()
        self.started_at = source.last_seq
        self.missed = 0
        self._position = source.last_seq if after is None else after
        if self._position > source.last_seq:
            # A number of another numbering (a clock set back): nothing is known of what this client has seen.
            self._position = source.first_seq - 1

    def wake(self) -> None:
        """Let a waiting iteration look again."""
        self._woken.set()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            self._woken.clear()
            text = self._take()
            if text is not None:
                return text
            if self._source.closed:
                raise StopAsyncIteration
            await self._woken.wait()

    def _take(self) -> str | None:
        """Return the next text and move past it, or None when there is nothing new for this subscriber."""
        lost = self._lost()
        if lost is not None:
            self.missed += 1
            self._position = lost[1]
            return encode({"type": "missed", "from": lost[0], "to": lost[1], "seq": lost[1]}).decode()
        while self._position < self._source.last_seq:
            self._position += 1
            frame = self._source.frame(self._position)
            if frame is not None and self._wants(frame):
                return frame.text
        return None

    def _lost(self) -> tuple[int, int] | None:
        """Tell the first and last number this subscriber will not get: fallen out of the ring, or too far behind."""
        oldest, newest = self._source.oldest_seq, self._source.last_seq
        if self._position + 1 < oldest:
            return self._position + 1, oldest - 1
        catching_up = self._position < self.started_at
        if catching_up or newest - self._position <= self._source.queue_limit:
            return None
        wanted = [seq for seq in range(self._position + 1, newest) if self._wants(self._source.frame(seq))]
        return (wanted[0], wanted[-1]) if wanted else None

    def _wants(self, frame: Frame | None) -> bool:
        if frame is None:
            return False
        wanted_market = self._markets is None or frame.market in self._markets
        return wanted_market and (self._kinds is None or frame.kind in self._kinds)
