"""Answer ``GET /api/v3/klines`` as Binance does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.simulator.market import SECOND_MS, Second
from service.simulator.tape import INTERVALS_MS
from service.simulator.truth import Truth
from service.simulator.wire import kline_row, partial

MAX_ROWS = 1_000
DEFAULT_ROWS = 500


class Refused(Exception):
    """A query that the exchange answers with 400 and this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def klines(truth: Truth, query: Mapping[str, str], now_ms: float) -> list[list[Any]]:
    """Return the rows asked for, ascending, the open candle last; raises Refused."""
    id_, interval = query.get("symbol"), query.get("interval")
    if not id_ or not interval:
        name = "interval" if id_ else "symbol"
        raise Refused(-1102, f"Mandatory parameter '{name}' was not sent, was empty/null, or malformed.")
    if id_ not in truth.symbols:
        raise Refused(-1121, "Invalid symbol.")
    if interval not in INTERVALS_MS:
        raise Refused(-1120, "Invalid interval.")
    interval_ms = INTERVALS_MS[interval]
    limit = max(1, min(_integer(query, "limit", DEFAULT_ROWS), MAX_ROWS))
    end = min(float(_integer(query, "endTime", 2**53)) + 1, now_ms)
    start = _integer(query, "startTime", -1)
    if start < 0:
        start = int(end) // interval_ms * interval_ms - (limit - 1) * interval_ms
    found = truth.between(id_, interval_ms, start, end)
    rows = [candle for candle, _ in zip(found, range(limit), strict=False)]
    return [kline_row(_as_it_stands(truth, id_, row, interval_ms, now_ms), interval_ms) for row in rows]


def _as_it_stands(truth: Truth, id_: str, candle: Second, interval_ms: int, now_ms: float) -> Second:
    if candle.open_time + interval_ms <= now_ms:
        return candle
    if interval_ms == SECOND_MS:
        return partial(candle)
    return truth.candle(id_, candle.open_time, interval_ms, now_ms) or candle


def _integer(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise Refused(
            -1100, f"Illegal characters found in parameter '{name}'; legal range is '^[0-9]{{1,20}}$'."
        ) from None
