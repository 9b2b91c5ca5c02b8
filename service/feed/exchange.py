"""ExchangeFeed: one market of one exchange, live, through ccxt.pro."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import random
from collections.abc import AsyncGenerator
from typing import Any, Self

from service.feed.assembler import Assembler, AssemblerRules
from service.feed.client import CallFailed
from service.feed.clock import ExchangeClock
from service.feed.measure import set_clock
from service.feed.pace import Backoff, DialBudget
from service.feed.reconciler import Reconciler
from service.feed.rows import Grid, interval_ms_of
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
    Notice,
)

MAX_CATCH_UP_CANDLES = 86_400
_WEEKS_FROM_MS = 86_400_000
_CONNECT_TRIES = 3
_CONNECT_PAUSE_SECONDS = 0.5


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
        self._grid = Grid(self.interval_ms)
        self._malformed = 0
        self._closed = False
        self._told_stale = False
        self._backfill_total: int | None = None
        self._lag_ms: float | None = None
        self._assembler: Assembler | None = None
        self._watcher: Watcher | None = None
        self._reconciler: Reconciler | None = None
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

    # --- context ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self.timing.connect_seconds):
                await self._reach()
        except TimeoutError:
            await self._close_client()
            raise FeedUnreachable(f"{self.exchange} did not answer within {self.timing.connect_seconds:g} s") from None
        except BaseException:
            await self._close_client()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop_tasks()
        await self._close_client()

    # --- candles ------------------------------------------------------------------------------------------------------

    async def stream(self, after: int | None, backfill: int) -> AsyncGenerator[FeedItem, None]:
        """Yield for ever, as service.ports.CandleFeed.stream says; one stream at a time."""
        assembler, first_gap = self._assemble(after, backfill)
        self._assembler = assembler
        self._reconciler = Reconciler(self._client, assembler, self.clock, self.timing, self._jitter, self._news.set)
        self._watcher = Watcher(
            self._client,
            assembler,
            self._reconciler,
            self.clock,
            self.timing,
            DialBudget(self.timing),
            Backoff(self.timing, self._jitter),
        )
        self._tasks = [
            asyncio.create_task(self._watcher.run(), name=f"watch {self.market}"),
            asyncio.create_task(self._reconciler.run(), name=f"reconcile {self.market}"),
        ]
        try:
            if first_gap is not None:
                yield first_gap
            while True:
                while (item := assembler.take()) is not None:
                    self._measure(item)
                    yield item
                if (notice := self._notice()) is not None:
                    yield notice
                await self._wait_for_news()
        finally:
            await self._stop_tasks()

    def state(self) -> FeedState:
        assembler, now = self._assembler, self.clock.now_ms()
        last = assembler.last if assembler is not None else None
        counts = assembler.counts if assembler is not None else None
        status, detail = self._status(now)
        rejected = dict(counts.rejected) if counts is not None else {}
        if self._malformed:
            rejected["malformed"] = self._malformed
        return FeedState(
            exchange=self.exchange,
            simulated=self.simulated,
            status=status,
            detail=detail,
            last_open_time=last.open_time if last is not None else None,
            age_ms=max(0, round(now - last.open_time - self.interval_ms)) if last is not None else None,
            lag_ms=self._lag_ms,
            reconnects=self._watcher.reconnects if self._watcher is not None else 0,
            backfilled=counts.backfilled if counts is not None else 0,
            backfill_total=self._backfill_total,
            filled=counts.filled if counts is not None else 0,
            gaps=counts.gaps if counts is not None else 0,
            corrections=counts.corrections if counts is not None else 0,
            rejected=rejected,
        )

    # --- entering -----------------------------------------------------------------------------------------------------

    async def _reach(self) -> None:
        """Read the market's data and the clock, trying again after trouble that may pass."""
        for attempt in range(1, _CONNECT_TRIES + 1):
            try:
                await self._client.load_markets()
                self._check_market()
                await self._set_clock()
                return
            except CallFailed as failure:
                if failure.trouble.refused or attempt == _CONNECT_TRIES:
                    raise FeedUnreachable(f"{self.exchange}: {failure.trouble.text}") from failure
                await asyncio.sleep(_CONNECT_PAUSE_SECONDS)

    def _check_market(self) -> None:
        api = self._client.api
        if self.symbol not in api.markets:
            close = difflib.get_close_matches(self.symbol.upper(), list(api.markets), n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigurationError(f"{self.exchange} has no symbol {self.symbol!r}{hint}")
        if self.timeframe not in (api.timeframes or {}) and not self._client.built:
            known = ", ".join(api.timeframes or {}) or "none"
            raise ConfigurationError(f"{self.exchange} has no timeframe {self.timeframe!r}; it has {known}")
        precision = api.markets[self.symbol].get("precision", {}).get("price")
        tick_sizes = 4  # ccxt.TICK_SIZE; in the other modes the number counts digits
        if precision is not None:
            self.tick = float(precision) if api.precisionMode == tick_sizes else 10.0 ** -int(precision)

    async def _set_clock(self) -> None:
        newest = await set_clock(self.clock, self._client, self.interval_ms)
        if newest is not None and self.interval_ms > _WEEKS_FROM_MS:
            self._grid = Grid(self.interval_ms, newest % self.interval_ms)

    # --- streaming ----------------------------------------------------------------------------------------------------

    def _assemble(self, after: int | None, backfill: int) -> tuple[Assembler, Gap | None]:
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
        self._backfill_total = max(0, (forming - start) // self.interval_ms)
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
        return Assembler(self.market, self._grid, start, rules, resuming=after is not None), gap

    def _take_row(self, row: object, closed: bool) -> None:
        if self._assembler is None:
            return
        now = self.clock.now_ms()
        future = self._assembler.counts.rejected["future"]
        self._assembler.offer(row, closed, now)
        if self._reconciler is not None:
            self._reconciler.told(doubtful_clock=self._assembler.counts.rejected["future"] > future)
        self._news.set()

    def _take_malformed(self) -> None:
        self._malformed += 1

    def _measure(self, item: FeedItem) -> None:
        if not isinstance(item, Gap | Notice) and getattr(item, "source", "") == "live":
            self._lag_ms = round(self.clock.now_ms() - item.open_time - self.interval_ms, 3)  # type: ignore[union-attr]

    async def _wait_for_news(self) -> None:
        """Return when something may have changed; a watching task that ended with a bug raises it here."""
        for task in self._tasks:
            if task.done():
                task.result()
        until_stale_ms = self._stale_at() - self.clock.now_ms()
        seconds = max(0.05, until_stale_ms / 1_000 / self.timing.speed) if not self._told_stale else 1.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, 1.0)):
                await self._news.wait()
        self._news.clear()

    def _notice(self) -> Notice | None:
        """Say once that the feed went stale, and once that it is back."""
        stale = self.clock.now_ms() >= self._stale_at() and self._caught_up_once()
        if stale == self._told_stale:
            return None
        self._told_stale = stale
        state = self.state()
        detail = {"age_ms": state.age_ms, "last_open_time": state.last_open_time, "reason": state.detail}
        return Notice("stale" if stale else "recovered", detail)

    def _stale_at(self) -> float:
        """When, if no candle comes, the feed must be called stale."""
        assert self._assembler is not None  # noqa: S101 - only asked while streaming
        return self._assembler.next_open + self.interval_ms + self.timing.stale_after_ms

    def _caught_up_once(self) -> bool:
        return self._reconciler is not None and self._reconciler.caught_up

    def _status(self, now: float) -> tuple[FeedStatus, str]:
        if self._closed:
            return "closed", "the feed was closed"
        if self._assembler is None or self._reconciler is None or self._watcher is None:
            return "starting", ""
        if now < self._stale_at():
            return "live", ""
        trouble = self._reconciler.trouble or self._watcher.trouble
        if self._reconciler.trouble is not None and self._watcher.trouble is not None:
            return "unreachable", trouble.text if trouble is not None else ""
        if self._reconciler.progressing or not self._reconciler.caught_up:
            return "backfilling", trouble.text if trouble is not None else ""
        return "stale", trouble.text if trouble is not None else "the exchange sends no newer candles"

    # --- leaving ------------------------------------------------------------------------------------------------------

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _close_client(self) -> None:
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timing.close_seconds):
                await self._client.close()
