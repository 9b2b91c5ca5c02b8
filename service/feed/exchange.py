"""ExchangeFeed: one market of one exchange, live, through ccxt.pro."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Self

from models.candle import Candle
from service.feed.assembler import Assembler, AssemblerRules
from service.feed.client import CallFailed
from service.feed.clock import ExchangeClock
from service.feed.health import Health
from service.feed.measure import set_clock
from service.feed.pace import Backoff, Manners
from service.feed.reconciler import Reconciler
from service.feed.rows import Grid
from service.feed.timing import FeedTiming
from service.feed.trade_client import choose_client, trades_timing
from service.feed.watcher import Watcher
from service.ports import (
    ConfigurationError,
    FeedItem,
    FeedState,
    FeedStatus,
    FeedUnreachable,
    Gap,
)
from service.timeframe import interval_ms_of

MAX_CATCH_UP_CANDLES = 86_400
_WEEKS_FROM_MS = 86_400_000
_CONNECT_TRIES = 3
_CONNECT_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 1.0
_STOP_TRIES = 2


class ExchangeFeed:
    """Closed candles of one market, each once and in order, as service.ports.CandleFeed promises.

    ``ccxt_config`` goes to ccxt's constructor unchanged. ``market`` names the market in candles (default
    ``EXCHANGE:SYMBOL``). The socket brings candles first; REST fills what it missed and is read again and again, and
    where it later tells a candle differently a Correction follows. ``from_trades`` builds the candles from trades even
    where the exchange has candles.
    """

    def __init__(
        self,
        *,
        exchange: str,
        symbol: str,
        timeframe: str,
        ccxt_config: dict[str, Any],
        simulated: bool = False,
        market: str | None = None,
        timing: FeedTiming | None = None,
        seed: int | None = None,
        from_trades: bool = False,
        manners: Manners | None = None,
    ) -> None:
        self.market = market or f"{exchange}:{symbol}"
        self.exchange = exchange
        self.symbol = symbol
        self.timeframe = timeframe
        self.simulated = simulated
        self.timing = timing or FeedTiming()
        self.interval_ms = interval_ms_of(timeframe)
        self.tick: float | None = None
        self.clock = ExchangeClock(self.timing.speed)
        self._jitter = random.Random(seed)
        self._manners = manners or Manners(self.timing)
        self._grid = Grid(self.interval_ms)
        self._malformed = 0
        self._closed = False
        self._health: Health | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._client = choose_client(
            exchange,
            symbol,
            timeframe,
            ccxt_config,
            self.timing,
            self._take_row,
            self._take_malformed,
            self.clock.now_ms,
            from_trades=from_trades,
        )
        if self._client.built:
            self.timing = trades_timing(self.timing)
        elif not self._client.dense:
            self.timing = self.timing.patient()

    # --- context ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._reach(self._load_market)
            await self._reach(self._set_clock)
        except BaseException:
            await self._close_client()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop_tasks()
        await self._close_client()

    # --- candles ------------------------------------------------------------------------------------------------------

    async def stream(
        self, after: int | None, backfill: int, recent: Sequence[Candle] = ()
    ) -> AsyncGenerator[FeedItem, None]:
        """Yield for ever, as service.ports.CandleFeed.stream says; one stream at a time.

        ``recent`` are the last candles that the consumer has; those that the exchange now tells differently come as
        Corrections.
        """
        assembler, first_gap = self._assemble(after, backfill, recent)
        timing, jitter = self.timing, self._jitter
        reconciler = Reconciler(self._client, assembler, self.clock, timing, jitter, self._manners, self._news.set)
        watcher = Watcher(
            self._client, assembler, reconciler, self.clock, timing, self._manners.dials, Backoff(timing, jitter)
        )
        total = max(0, (self._grid.floor(self.clock.now_ms()) - assembler.next_open) // self.interval_ms)
        health = self._health = Health(assembler, reconciler, watcher, self.clock, timing, total)
        self._tasks = [asyncio.create_task(reconciler.run(), name=f"reconcile {self.market}")]
        if self._client.streams:
            self._tasks.append(asyncio.create_task(watcher.run(), name=f"watch {self.market}"))
        try:
            if first_gap is not None:
                yield first_gap
            while True:
                while (item := assembler.take()) is not None:
                    health.measure(item)
                    yield item
                if (notice := health.notice()) is not None:
                    yield notice
                await self._wait_for_news(health)
        finally:
            await self._stop_tasks()

    def state(self) -> FeedState:
        if self._closed or self._health is None:
            status: FeedStatus = "closed" if self._closed else "starting"
            return FeedState(exchange=self.exchange, simulated=self.simulated, status=status)
        return self._health.state(self.exchange, self.simulated, self._malformed)

    # --- entering -----------------------------------------------------------------------------------------------------

    async def _reach(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do one part of reaching the exchange, trying again after trouble that may pass."""
        patience = self.timing.connect_seconds
        try:
            async with asyncio.timeout(patience):
                for attempt in range(1, _CONNECT_TRIES + 1):
                    try:
                        return await part()
                    except CallFailed as failure:
                        if failure.trouble.refused or attempt == _CONNECT_TRIES:
                            raise FeedUnreachable(f"{self.exchange}: {failure.trouble.text}") from failure
                        await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
        except TimeoutError:
            raise FeedUnreachable(f"{self.exchange} did not answer within {patience:g} s") from None

    async def _load_market(self) -> None:
        await self._client.load_markets(self._manners)
        api = self._client.api
        if self.symbol not in api.markets:
            close = difflib.get_close_matches(self.symbol.upper(), list(api.markets), n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigurationError(f"{self.exchange} has no symbol {self.symbol!r}{hint}")
        if self.timeframe not in (api.timeframes or {}) and not self._client.built:
            known = ", ".join(api.timeframes or {}) or "none"
            raise ConfigurationError(f"{self.exchange} has no timeframe {self.timeframe!r}; it has {known}")
        if not self._client.built and not api.has.get("fetchOHLCV"):
            raise ConfigurationError(f"{self.exchange} gives no candles by REST, which the feed needs")
        precision = api.markets[self.symbol].get("precision", {}).get("price")
        tick_sizes = 4  # ccxt.TICK_SIZE; in the other modes the number counts digits
        if precision is not None:
            self.tick = float(precision) if api.precisionMode == tick_sizes else 10.0 ** -int(precision)

    async def _set_clock(self) -> None:
        newest = await set_clock(self.clock, self._client, self.interval_ms)
        if newest is not None and self.interval_ms > _WEEKS_FROM_MS:
            self._grid = Grid(self.interval_ms, newest % self.interval_ms)

    # --- streaming ----------------------------------------------------------------------------------------------------

    def _assemble(self, after: int | None, backfill: int, recent: Sequence[Candle]) -> tuple[Assembler, Gap | None]:
        forming = self._grid.floor(self.clock.now_ms())
        oldest = forming - MAX_CATCH_UP_CANDLES * self.interval_ms
        gap = None
        if after is None:
            start = max(oldest, forming - backfill * self.interval_ms)
        else:
            start = after + self.interval_ms
            if start < oldest:
                gap = Gap(self.market, start, oldest, f"longer ago than {MAX_CATCH_UP_CANDLES} candles")
                start = oldest
        timing = self.timing
        rules = AssemblerRules(
            flagged=self._client.flagged,
            dense=self._client.dense,
            built=self._client.built,
            gap_tries=timing.gap_tries,
            future_ms=timing.future_ms,
            rest_grace_ms=timing.rest_grace_ms,
            backfill_after_ms=timing.backfill_after_ms,
        )
        return Assembler(self.market, self._grid, start, rules, resuming=after is not None, recent=recent), gap

    def _take_row(self, row: object, closed: bool) -> None:
        if self._health is None:
            return
        assembler = self._health.assembler
        future = assembler.counts.rejected["future"]
        assembler.offer(row, closed, self.clock.now_ms())
        self._health.reconciler.told(doubtful_clock=assembler.counts.rejected["future"] > future)
        self._news.set()

    def _take_malformed(self) -> None:
        self._malformed += 1

    async def _wait_for_news(self, health: Health) -> None:
        """Return when something may have changed; a watching task that ended with a bug raises it here."""
        for task in self._tasks:
            if task.done():
                task.result()
        until_stale_ms = health.stale_at_ms - self.clock.now_ms()
        seconds = _LOOK_SECONDS if health.told_stale else max(0.05, until_stale_ms / 1_000 / self.timing.speed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, _LOOK_SECONDS)):
                await self._news.wait()
        self._news.clear()

    # --- leaving ------------------------------------------------------------------------------------------------------

    async def _stop_tasks(self) -> None:
        running, self._tasks = set(self._tasks), []
        # A library below may swallow one cancellation, as Python 3.11's wait_for does; two, and we leave all the same.
        for _ in range(_STOP_TRIES):
            if not running:
                return
            for task in running:
                task.cancel()
            ended, running = await asyncio.wait(running, timeout=_STOP_SECONDS)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # looked at: asyncio would print it

    async def _close_client(self) -> None:
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timing.close_seconds):
                await self._client.close()
