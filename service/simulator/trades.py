"""The trades behind a simulated second: first, highest, lowest, some more, last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.simulator.market import MAX_TRADES, SECOND_MS, Second
from service.simulator.truth import Truth

MAX_ROWS = 1_000
_HOUR_MS = 3_600_000
_UNIT = 10**8


def trades_of(second: Second) -> list[dict[str, Any]]:
    """Return the trades of one second as the aggTrades endpoint writes them; together they make its candle."""
    count = second.trades
    if count == 0:
        return []
    extremes = [second.high, second.low] if count >= 4 else []
    middle = [second.close] * (count - 2 - len(extremes))
    prices = [second.open, *extremes, *middle, second.close][:count] if count > 1 else [second.close]
    units = round(second.volume * _UNIT)
    amounts = [units // count] * (count - 1)
    amounts.append(units - sum(amounts))
    first = second.open_time // SECOND_MS * MAX_TRADES
    return [
        {
            "a": first + number,
            "p": f"{price:.8f}",
            "q": f"{amount / _UNIT:.8f}",
            "f": first + number,
            "l": first + number,
            "T": second.open_time + number * SECOND_MS // count,
            "m": False,
            "M": True,
        }
        for number, (price, amount) in enumerate(zip(prices, amounts, strict=True))
    ]


def trade_frame(id_: str, trade: dict[str, Any], event_ms: int) -> dict[str, Any]:
    """Write a trade as the ``@trade`` stream pushes it."""
    same = {"t": trade["a"], "p": trade["p"], "q": trade["q"], "T": trade["T"], "m": trade["m"], "M": trade["M"]}
    return {"e": "trade", "E": event_ms, "s": id_, **same}


def agg_trades(truth: Truth, id_: str, start: int | None, limit: int, now_ms: float) -> list[dict[str, Any]]:
    """Return the trades of the hour from ``start`` on, or the newest of the last hour, ascending, at most ``limit``."""
    limit = max(1, min(limit, MAX_ROWS))
    if start is None:
        newest: list[dict[str, Any]] = []
        time = int(now_ms) // SECOND_MS * SECOND_MS
        hour_ago = time - _HOUR_MS
        while len(newest) < limit and time > hour_ago:
            newest[:0] = [trade for trade in _of(truth, id_, time) if trade["T"] <= now_ms]
            time -= SECOND_MS
        return newest[-limit:]
    rows = _between(truth, id_, start, min(now_ms, start + _HOUR_MS))
    return [trade for trade, _ in zip(rows, range(limit), strict=False)]


def _between(truth: Truth, id_: str, start: int, end: float) -> Iterator[dict[str, Any]]:
    time = start // SECOND_MS * SECOND_MS
    while time <= end:
        yield from (trade for trade in _of(truth, id_, time) if start <= trade["T"] <= end)
        time += SECOND_MS


def _of(truth: Truth, id_: str, time: int) -> list[dict[str, Any]]:
    second = truth.candle(id_, time, SECOND_MS)
    return [] if second is None else trades_of(second)
