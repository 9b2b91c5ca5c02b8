"""Absence: which candles the exchange itself does not have. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Container

_SPOILT_WEIGHT = 0.2


class Absence:
    """Counts the answers that skip a candle though they go beyond it; after ``tries`` of them it is surely absent."""

    def __init__(self, interval_ms: int, tries: int) -> None:
        self._interval_ms = interval_ms
        self._tries = tries
        # Only of candles still to come: at most as many as one answer spans.
        self._skipped: dict[int, float] = {}

    def count(self, next_open: int, span: range, there: Container[int], *, spoilt: bool) -> None:
        """Take an answer about ``span`` that holds the candles ``there``.

        Of a ``spoilt`` one some rows made no sense; it counts for less, since the next may be whole, but does count: a
        row that never makes sense must not hold up all that come after it.
        """
        weight = _SPOILT_WEIGHT if spoilt else 1.0
        self._skipped = {
            **{time: count for time, count in self._skipped.items() if time >= next_open and time not in there},
            **{time: self._skipped.get(time, 0.0) + weight for time in span if time not in there},
        }

    def sure(self, time: int) -> bool:
        return self._skipped.get(time, 0.0) > self._tries - _SPOILT_WEIGHT / 2
