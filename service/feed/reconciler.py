"""Reconciler: asks REST for what the socket missed, and reads recent candles again for late corrections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from service.feed.assembler import Assembler
from service.feed.client import CallFailed, ExchangeClient
from service.feed.clock import ExchangeClock
from service.feed.measure import set_clock
from service.feed.pace import Backoff, Manners
from service.feed.timing import FeedTiming
from service.feed.trouble import Trouble

DEEP_REREAD_CANDLES = 990
_OVERLAP_CANDLES = 5
# However many frames come from the future or contradict what was handed out, REST is asked no oftener for it.
_DOUBT_MS = 5_000
_SUSPECT_MS = 1_000
# Between two questions about a candle that is overdue but not there yet.
_OVERDUE_MS = 500
_CONGESTED_SECONDS = 0.05
_SPARE_ROWS = 25


class Reconciler:
    """Keeps REST's word in the assembler; ``run`` never returns.

    ``trouble`` is what went wrong with the last question, None when it was answered. ``caught_up`` turns true when
    the first catch-up has reached the present, ``progressing`` tells whether the last answer moved the assembler on.
    """

    def __init__(
        self,
        client: ExchangeClient,
        assembler: Assembler,
        clock: ExchangeClock,
        timing: FeedTiming,
        jitter: random.Random,
        manners: Manners,
        on_news: Callable[[], None],
    ) -> None:
        self._trouble: Trouble | None = None
        self.caught_up = False
        self.progressing = False
        self.newest: int | None = None
        self._client = client
        self._assembler = assembler
        self._clock = clock
        self._timing = timing
        self._backoff = Backoff(timing, jitter)
        self._manners = manners
        self._on_news = on_news
        self._first = assembler.oldest
        self._limit = client.row_limit()
        now = clock.elapsed_ms()
        self._not_before = now
        self._reread_at = now
        self._deep_at = now + timing.deep_reread_ms
        self._clock_at = now + timing.clock_every_ms
        self._clock_asked_at = now
        self._read_at = now
        self._missing_since: tuple[int, float] | None = None
        self._wake = asyncio.Event()

    @property
    def trouble(self) -> Trouble | None:
        return Trouble("the exchange does not answer") if self._client.late else self._trouble

    def told(self, *, doubtful_clock: bool) -> None:
        """Look again: the socket brought something. ``doubtful_clock``: a row seemed to come from the future."""
        if doubtful_clock:
            self._clock_at = min(self._clock_at, self._clock_asked_at + _DOUBT_MS)
        if doubtful_clock or self._assembler.missing or self._assembler.suspects:
            self._wake.set()

    def reread_now(self) -> None:
        """Read recent candles again as soon as possible: the socket was away."""
        self._reread_at = min(self._reread_at, self._clock.elapsed_ms())
        self._wake.set()

    async def run(self) -> None:
        while True:
            wait_ms = self._wait_ms()
            self._stop_holding()
            if wait_ms > 0:
                await self._sleep(wait_ms)
            elif self._assembler.congested:
                await asyncio.sleep(_CONGESTED_SECONDS)
            else:
                await self._ask()

    # --- when ---------------------------------------------------------------------------------------------------------

    def _wait_ms(self) -> float:
        now = self._clock.elapsed_ms()
        due = min(self._reread_at, self._deep_at, self._clock_at, self._missing_at(now), self._overdue_at(now))
        return max(max(due, self._not_before) - now, self._manners.quiet_seconds() * 1_000 * self._timing.speed)

    def _missing_at(self, now: float) -> float:
        """When to ask for a candle that must have closed, since a later one is known."""
        if self._assembler.suspects:
            return self._read_at + _SUSPECT_MS
        if not self._assembler.missing:
            self._missing_since = None
            return float("inf")
        if self._missing_since is None or self._missing_since[0] != self._assembler.next_open:
            self._missing_since = (self._assembler.next_open, now)
        return self._missing_since[1] + self._timing.final_grace_ms

    def _overdue_at(self, now: float) -> float:
        """When to ask because no candle came at all."""
        assembler, interval = self._assembler, self._assembler.grid.interval_ms
        # While the socket is behind REST, REST alone has to keep up with the market.
        behind = (assembler.newest_seen or 0) + interval < assembler.next_open
        patience_ms = self._timing.follow_after_ms if behind else self._timing.poll_after_ms
        return now + (assembler.next_open + interval + patience_ms - self._clock.now_ms())

    def _stop_holding(self) -> None:
        """Go on without a candle that REST could not be asked about for too long, if later ones are waiting."""
        if self._missing_since is None or not self._assembler.waiting:
            return
        place, since = self._missing_since
        if place == self._assembler.next_open and self._clock.elapsed_ms() - since > self._timing.hold_ms:
            why = f": {self.trouble.text}" if self.trouble is not None else ""
            self._assembler.give_up(f"REST could not be asked{why}")
            self._on_news()

    async def _sleep(self, wait_ms: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000 / self._timing.speed):
                await self._wake.wait()

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        before, asked_at = self._assembler.next_open, self._clock.elapsed_ms()
        try:
            if self._clock.elapsed_ms() >= self._clock_at:
                await self._set_clock()
            behind = await self._read()
        except CallFailed as failure:
            self._failed(failure.trouble, asked_at)
            return
        self.progressing = self._assembler.next_open > before
        if self.progressing or not self._assembler.missing:
            self._trouble = None
            self._backoff.succeeded()
        self._not_before = now = self._clock.elapsed_ms()
        if not (self.progressing and behind):
            if self._assembler.missing or behind:
                self._not_before += self._timing.retry_ms
            elif self._overdue_at(now) <= now:
                self._not_before += _OVERDUE_MS
            # A halted exchange has nothing newer: that is the present, too.
            self.caught_up = self.caught_up or not behind or not self._assembler.missing
        self._on_news()

    async def _read(self) -> bool:
        """Ask for candles once; returns whether the assembler is still behind what REST has."""
        assembler, interval = self._assembler, self._assembler.grid.interval_ms
        since, limit = self._range()
        self._read_at = self._clock.elapsed_ms()
        asked_at = self._clock.now_ms()
        rows = await self._client.candles(since, limit)
        answer = assembler.answer(rows, since, asked_at)
        if answer.valid == 0 and (answer.refused or rows):
            raise CallFailed(Trouble("the answer held no readable candle"))
        newest = answer.newest_traded if self._client.built else answer.newest
        if newest is not None:
            self.newest = max(self.newest or 0, newest)
        now = self._clock.elapsed_ms()
        self._reread_at = now + max(self._timing.reread_ms, min(interval, 60_000))
        return assembler.next_open + interval <= self._clock.now_ms() - self._timing.rest_grace_ms

    def _range(self) -> tuple[int, int]:
        """Choose where to read from, and how many rows: from the first candle missing, or back over recent ones."""
        assembler, now = self._assembler, self._clock.elapsed_ms()
        interval = assembler.grid.interval_ms
        back = self._timing.reread_candles
        if now >= self._deep_at:
            self._deep_at = now + max(self._timing.deep_reread_ms, interval)
            back = DEEP_REREAD_CANDLES
        elif now < self._reread_at:
            back = _OVERLAP_CANDLES
        since = assembler.next_open - min(back, self._limit - _SPARE_ROWS) * interval
        if assembler.suspects:
            since = min(since, max(min(assembler.suspects), assembler.next_open - (self._limit - 10) * interval))
        since = max(since, self._first - interval)
        # Many to spare: an answer may begin earlier than asked, or say things twice.
        wanted = 2 * (self._clock.now_ms() - since) / interval + _SPARE_ROWS
        return since, int(max(_SPARE_ROWS, min(self._limit, wanted)))

    async def _set_clock(self) -> None:
        self._clock_asked_at = self._clock.elapsed_ms()
        self._clock_at = self._clock_asked_at + self._timing.clock_every_ms
        await set_clock(self._clock, self._client, self._assembler.grid.interval_ms)

    def _failed(self, trouble: Trouble, asked_at: float) -> None:
        self._trouble = trouble
        self.progressing = False
        pause_seconds = self._backoff.failed(trouble)
        if trouble.limited:
            self._manners.keep_quiet(pause_seconds)
        # Where no answer came for long, the waiting was the pause.
        since = self._clock.elapsed_ms() if trouble.limited or trouble.refused else asked_at
        self._not_before = since + pause_seconds * 1_000 * self._timing.speed
        self._on_news()
