"""TradeClient: the client of an exchange without candles of this length, which makes them of its trades."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ccxt.pro as ccxt_pro

from service.feed.client import CallFailed, ExchangeClient, OnRow
from service.feed.timing import FeedTiming
from service.feed.trades import Row, Trade, TradeCandles, candle_rows, in_order, read_trades
from service.feed.trouble import Trouble
from service.timeframe import interval_ms_of

PAGE_TRADES = 1_000
MAX_PAGES = 5
_BEFORE_MS = (30_000, 900_000)
_SETTLED_MS = 2_000
_SHORTEST_MS = 1_000
_BYBIT_TRADES = 60  # of a spot market it tells no more
# Asked for trades until some time they give the newest before it, others the oldest since.
NEWEST_FIRST = (ccxt_pro.coinbase, ccxt_pro.gate)
# A page that is not full ends in the present; elsewhere it may have been cut shorter than asked.
FULL_PAGES = (ccxt_pro.kraken,)


def trades_timing(timing: FeedTiming) -> FeedTiming:
    """Return the timing for candles built from trades: quiet seconds are asked about soon, and less is read again."""
    return replace(
        timing.patient(),
        poll_after_ms=1_500,
        follow_after_ms=1_500,
        reread_ms=15_000,
        reread_candles=30,
        deep_reread_ms=10**12,
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
        self._span_ms = float("inf")

    async def candles(self, since: int | None, limit: int) -> list[Row]:
        interval = self._interval_ms
        if since is None:
            newest = await self._page(None)
            start = self._floor(newest[-1].time_ms) if newest else 0
            return candle_rows(newest, interval, start, start + interval, None)[:limit] if newest else []
        trades, started, known_until = await self._fetch(since, since + limit * interval)
        if not trades:
            return []
        first = since if started else self._floor(trades[0].time_ms) + interval
        open_row = self._floor(max(trades[-1].time_ms, known_until))
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
        if isinstance(self.api, ccxt_pro.kucoin):
            self.api.options["urls"] = {}  # an address given once, with a token that may have ended
        await super().drop_sockets(keep)

    async def _fetch(self, since: int, until: int) -> tuple[list[Trade], bool, float]:
        """Fetch the trades from ``since`` on; returns also whether they surely begin there, and until when all came."""
        asked_at = self._now_ms()
        if isinstance(self.api, NEWEST_FIRST):
            return await self._fetch_back(since, min(until, asked_at - _SETTLED_MS))
        found = page = await self._page_with_one_before(since, None)
        for _ in range(MAX_PAGES):
            if not found or found[-1].time_ms >= until:
                break
            known = {trade.id for trade in found}
            if len(page) >= PAGE_TRADES or not isinstance(self.api, FULL_PAGES):
                page = await self._page(found[-1].time_ms)
            if known.issuperset(trade.id for trade in page):
                ended = len(page) < PAGE_TRADES
                return found, found[0].time_ms < since, asked_at - _SETTLED_MS if ended else 0.0
            found = in_order({trade.id: trade for trade in (*found, *page)}.values())
        return found, bool(found) and found[0].time_ms < since, 0.0

    async def _fetch_back(self, since: int, until: float) -> tuple[list[Trade], bool, float]:
        """Fetch where the newest trades of a span are given, span by span."""
        found, started, known_until = await self._span(since, until)
        for _ in range(MAX_PAGES):
            if known_until >= until:
                break
            more, joined, known_until_more = await self._span(int(known_until), until)
            if not joined:
                break
            found = in_order({trade.id: trade for trade in (*found, *more)}.values())
            known_until = known_until_more
        return found, started, known_until

    async def _span(self, since: int, until: float) -> tuple[list[Trade], bool, float]:
        """Fetch so short a span that its newest trades reach back to its start; returns as ``_fetch`` does."""
        span = min(max(until - since, 0.0), self._span_ms)
        while True:
            found = await self._page_with_one_before(since, int(since + span) + 1_000)
            started = bool(found) and found[0].time_ms < since
            if started or len(found) < PAGE_TRADES or span < _SHORTEST_MS:
                break
            span /= 4
        self._span_ms = max(2 * span, _SHORTEST_MS)
        return found, started, since + span

    async def _page_with_one_before(self, since: int, until: int | None) -> list[Trade]:
        """Return a page that begins before ``since``, if the exchange has one: its last price opens a quiet second."""
        found: list[Trade] = []
        for before_ms in _BEFORE_MS:
            found = await self._page(since - before_ms, until)
            if len(found) >= PAGE_TRADES or any(trade.time_ms < since for trade in found):
                break
        return found

    async def _page(self, since: int | None, until: int | None = None) -> list[Trade]:
        params = {} if until is None else {"until": until}
        # Some are asked in whole seconds: what ccxt then left out of a page would make a full one look like the last.
        since = None if since is None else since // 1_000 * 1_000
        limit = _BYBIT_TRADES if isinstance(self.api, ccxt_pro.bybit) else PAGE_TRADES
        raw: Any = await self._ask(lambda: self.api.fetch_trades(self._symbol, since, limit, params))
        trades, refused = read_trades(raw)
        if refused:
            raise CallFailed(Trouble("the answer held trades that make no sense"))
        return trades

    def _floor(self, time_ms: float) -> int:
        return int(time_ms) // self._interval_ms * self._interval_ms
