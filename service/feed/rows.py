"""Rows as ccxt hands them over, and the one door through which they become candles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.candle import Candle, InvalidCandle


@dataclass(frozen=True, slots=True)
class Grid:
    """Where candles may start: every ``interval_ms`` from ``phase_ms``."""

    interval_ms: int
    phase_ms: int = 0

    def floor(self, time_ms: float) -> int:
        """Return the start of the interval that ``time_ms`` lies in."""
        return math.floor((time_ms - self.phase_ms) / self.interval_ms) * self.interval_ms + self.phase_ms

    def holds(self, open_time: int) -> bool:
        return (open_time - self.phase_ms) % self.interval_ms == 0


def read_candle(market: str, row: object, grid: Grid, latest_ms: float) -> Candle:
    """Make a candle of ``[open_time, open, high, low, close, volume]``, numbers or decimal strings.

    Raises InvalidCandle for anything else, and for a candle that is off the grid or opens after ``latest_ms``.
    """
    if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != 6:
        raise InvalidCandle("fields", "a row did not have its six fields")
    open_time = row[0]
    if type(open_time) is not int:
        raise InvalidCandle("time", f"open_time was {type(open_time).__name__}, not an integer")
    if open_time > latest_ms:
        raise InvalidCandle("future", f"open_time was {open_time}, {open_time - latest_ms:.0f} ms ahead of what can be")
    if not grid.holds(open_time):
        raise InvalidCandle("grid", f"open_time was {open_time}, not on a grid of {grid.interval_ms} ms")
    open_, high, low, close, volume = (_number(value) for value in row[1:])
    return Candle(market, open_time, open_, high, low, close, volume)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidCandle("missing", f"a number was {type(value).__name__}")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise InvalidCandle("missing", "a number was not a number") from None


def same_values(one: Candle, other: Candle) -> bool:
    """Tell whether two candles say the same, wherever they came from."""
    return (one.open, one.high, one.low, one.close, one.volume) == (
        other.open,
        other.high,
        other.low,
        other.close,
        other.volume,
    )
