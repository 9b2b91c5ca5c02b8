"""TradeClient: the client of an exchange without candles of this length, which makes them of its trades."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from service.feed.client import CallFailed, ExchangeClient, OnRow
from service.feed.timing import FeedTiming
from service.feed.trades import Row, Trade, TradeCandles, candle_rows, read_trades
from service.feed.trouble import Trouble
from service.timeframe import interval_ms_of

PAGE_TRADES = 1_000
MAX_PAGES = 5
_BEFORE_MS = (30_000, 900_000)
_SETTLED_MS = 2_000


def trades_timing(timing: FeedTiming) -> FeedTiming:
    """Return the timing for candles built from trades: quiet seconds are asked about soon, and less is read again."""
    return replace(
        timing, poll_after_ms=1_500, follow_after_ms=1_500, reread_ms=15_000, reread_candles=30, deep_reread_ms=10**12
    )


def choose_client(
    exchange: str,
    symbol: str,
    timeframe: str,
    config: dict[str, Any],
    timing: FeedTiming,
    on_row: OnRow,
    on_malformed: Callable[[], None],
    now_ms: Callable[[], float],
    *,
    from_trades: bool,
) -> ExchangeClient:
    """Make the exchange's client: one that reads its candles, or makes 1 s candles where it has only trades."""
    arguments = (exchange, symbol, timeframe, config, timing, on_row, on_malformed)
    client = ExchangeClient(*arguments)
    has = client.api.has
    lacking = timeframe not in (client.api.timeframes or {}) and has.get("watchTrades") and has.get("fetchTrades")
    if not from_trades and not (lacking and timeframe == "1s"):
        return client
    trades = TradeClient(*arguments)
    trades.begin(interval_ms_of(timeframe), now_ms)
    return trades


class TradeClient(ExchangeClient):
    """Answers as ExchangeClient does, with rows built from trades.

    An interval without trades has a flat row with volume 0, and only where the trades around it, or the exchange's
    silence until two seconds ago, show that it was quiet.
    """

    built = True
    streams = True

    def begin(self, interval_ms: int, now_ms: Callable[[], float]) -> None:
        """Say how long the candles are and what time it is at the exchange; call it before anything else."""
        self.dense = self.flagged = True
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._builder = TradeCandles(interval_ms)

    async def candles(self, since: int | None, limit: int) -> list[Row]:
        interval = self._interval_ms
        if since is None:
            newest = await self._page(None)
            start = self._floor(newest[-1].time_ms) if newest else 0
            return candle_rows(newest, interval, start, start + interval, None)[:limit] if newest else []
        asked_at = self._now_ms()
        trades, started, ended = await self._pages(since, since + limit * interval)
        if not trades:
            return []
        first = since if started else self._floor(trades[0].time_ms) + interval
        open_row = self._floor(trades[-1].time_ms)
        if ended:
            open_row = max(open_row, self._floor(asked_at - _SETTLED_MS))
        last_close = next((trade.price for trade in reversed(trades) if trade.time_ms < first), None)
        return candle_rows(trades, interval, max(since, first), open_row + interval, last_close)[:limit]

    def row_limit(self) -> int:
        return PAGE_TRADES

    async def watch(self) -> None:
        with self._telling_trouble(of_socket=True):
            raw = await self.api.watch_trades(self._symbol)
        trades, refused = read_trades(raw)
        for _ in range(refused):
            self._on_malformed()
        for row in self._builder.add(trades):
            self._on_row(row, True)

    async def drop_sockets(self, keep: set[str] | None = None) -> None:
        if keep is None:
            self._builder.disconnected()
        await super().drop_sockets(keep)

    async def _pages(self, since: int, until: int) -> tuple[list[Trade], bool, bool]:
        """Fetch the trades from ``since`` on; returns also whether they surely begin there, and reach the present."""
        found: dict[str, Trade] = {}
        started = False
        for before_ms in _BEFORE_MS:
            found.update((trade.id, trade) for trade in await self._page(since - before_ms))
            started = any(trade.time_ms < since for trade in found.values())
            if started or not found:
                break
        for _ in range(MAX_PAGES):
            newest = max((trade.time_ms for trade in found.values()), default=until)
            if newest >= until:
                break
            more = [trade for trade in await self._page(newest) if trade.id not in found]
            if not more:
                return _in_order(found), started, True
            found.update((trade.id, trade) for trade in more)
        return _in_order(found), started, False

    async def _page(self, since: int | None) -> list[Trade]:
        with self._telling_trouble():
            raw: Any = await self.api.fetch_trades(self._symbol, since, PAGE_TRADES)
        trades, refused = read_trades(raw)
        if refused:
            raise CallFailed(Trouble("the answer held trades that make no sense"))
        return trades

    def _floor(self, time_ms: float) -> int:
        return int(time_ms) // self._interval_ms * self._interval_ms


def _in_order(trades: dict[str, Trade]) -> list[Trade]:
    return sorted(trades.values(), key=lambda trade: trade.time_ms)
