"""Candles from trades, for exchanges that have none of this length. Pure: no clock, no I/O."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = list[Any]
_REMEMBERED_IDS = 5_000
_VOLUME_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Trade:
    """One trade; ``time_ms`` is UTC milliseconds."""

    id: str
    time_ms: int
    price: float
    amount: float

    @property
    def place(self) -> tuple[int, int]:
        """Where it comes among others: within a millisecond by its number, where it has one."""
        return self.time_ms, int(self.id) if self.id.isdecimal() else 0


def read_trades(raw: object) -> tuple[list[Trade], int]:
    """Read ccxt's trades; returns the valid ones in order of time, each once, and how many made no sense."""
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        return [], 1
    trades: dict[str, Trade] = {}
    refused = 0
    for item in raw:
        trade = _read_trade(item)
        if trade is None:
            refused += 1
        else:
            trades[trade.id] = trade
    return in_order(trades.values()), refused


def in_order(trades: Iterable[Trade]) -> list[Trade]:
    return sorted(trades, key=lambda trade: trade.place)


def candle_rows(trades: Iterable[Trade], interval_ms: int, start: int, end: int, last_close: float | None) -> list[Row]:
    """Make the rows from ``start`` to ``end`` (exclusive) of trades in order of time.

    An interval without trades gets a flat row at the last close, volume 0; before the first known price it gets none.
    """
    found: dict[int, list[Trade]] = {}
    for trade in trades:
        found.setdefault(trade.time_ms // interval_ms * interval_ms, []).append(trade)
    rows: list[Row] = []
    for time in range(start, end, interval_ms):
        there = found.get(time)
        if there:
            rows.append(_row(time, there))
            last_close = there[-1].price
        elif last_close is not None:
            rows.append([time, last_close, last_close, last_close, last_close, 0.0])
    return rows


class TradeCandles:
    """Builds candles as the socket brings trades: an interval is over when a trade of a later one came.

    The interval of the first trade is left out, its beginning was not seen.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._from: int | None = None
        self._trades: list[Trade] = []
        self._last_close: float | None = None
        # Full: the oldest id is forgotten; a trade that old belongs to an interval long closed.
        self._seen: OrderedDict[str, None] = OrderedDict()

    def disconnected(self) -> None:
        """Start over: trades may have been missed."""
        self._from, self._trades, self._last_close = None, [], None

    def add(self, trades: Iterable[Trade]) -> list[Row]:
        """Take new trades; returns the rows of the intervals that are over now, ascending."""
        fresh = [trade for trade in trades if trade.id not in self._seen]
        for trade in fresh:
            self._remember(trade.id)
        if not fresh:
            return []
        if self._from is None:
            self._from = self._floor(fresh[0].time_ms) + self._interval_ms
            self._last_close = fresh[0].price
        self._trades = in_order([*self._trades, *fresh])
        return self._close(self._floor(self._trades[-1].time_ms))

    def _close(self, end: int) -> list[Row]:
        assert self._from is not None  # noqa: S101 - set by add, the only caller
        before = [trade for trade in self._trades if trade.time_ms < self._from]
        if before:
            self._last_close = before[-1].price
        self._trades = [trade for trade in self._trades if trade.time_ms >= self._from]
        rows = candle_rows(self._trades, self._interval_ms, self._from, end, self._last_close)
        if rows:
            self._from, self._last_close = end, rows[-1][4]
            self._trades = [trade for trade in self._trades if trade.time_ms >= end]
        return rows

    def _floor(self, time_ms: int) -> int:
        return time_ms // self._interval_ms * self._interval_ms

    def _remember(self, id_: str) -> None:
        self._seen[id_] = None
        if len(self._seen) > _REMEMBERED_IDS:
            self._seen.popitem(last=False)


def _row(time: int, trades: Sequence[Trade]) -> Row:
    prices = [trade.price for trade in trades]
    volume = round(math.fsum(trade.amount for trade in trades), _VOLUME_DIGITS)
    return [time, prices[0], max(prices), min(prices), prices[-1], volume]


def _read_trade(item: object) -> Trade | None:
    if not isinstance(item, Mapping):
        return None
    time, price, amount = item.get("timestamp"), item.get("price"), item.get("amount")
    if type(time) is not int or not isinstance(price, int | float) or not isinstance(amount, int | float):
        return None
    if not (math.isfinite(price) and math.isfinite(amount) and price > 0 and amount > 0 and time > 0):
        return None
    id_ = item.get("id")
    return Trade(str(id_) if id_ is not None else f"{time}:{price}:{amount}", time, float(price), float(amount))
