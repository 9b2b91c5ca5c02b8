"""What the simulated exchange knows to be true: every second of every symbol, and candles made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from models.candle import Candle
from service.ports import ConfigurationError
from service.simulator.market import HISTORY_START_MS, SECOND_MS, Floats, Second, SeededMarket

_MINUTE_MS = 60_000
INTERVALS_MS = {
    "1s": SECOND_MS,
    **{f"{count}m": count * _MINUTE_MS for count in (1, 3, 5, 15, 30)},
    **{f"{count}h": count * 60 * _MINUTE_MS for count in (1, 2, 4, 6, 8, 12)},
    "1d": 24 * 60 * _MINUTE_MS,
}
COARSE_FROM_MS = 5 * _MINUTE_MS


class Tape(Protocol):
    """Every second of one symbol; the same question always has the same answer."""

    def second(self, open_time: int) -> Second: ...


class PlayedTape:
    """Candles played over and over, laid on wall time so that a restart sees the same history.

    Seconds that they lack are quiet ones, and cost nothing however many they are. Raises ConfigurationError for
    candles that do not rise on one grid of seconds.
    """

    def __init__(self, candles: Sequence[Candle]) -> None:
        if not candles:
            raise ConfigurationError("no candles to play")
        self._times = np.array([candle.open_time for candle in candles], np.int64)
        if (np.diff(self._times) <= 0).any() or ((self._times - self._times[0]) % SECOND_MS).any():
            raise ConfigurationError("the candles to play do not rise on one grid of 1000 ms")
        self._rows = np.array([(c.open, c.high, c.low, c.close, c.volume) for c in candles])
        self._first = int(self._times[0])
        self._length_ms = int(self._times[-1]) - self._first + SECOND_MS

    def second(self, open_time: int) -> Second:
        """Return the second that starts at ``open_time``."""
        place = self._place(open_time)
        found = int(np.searchsorted(self._times, place, "right")) - 1
        open_, high, low, close, volume = (float(value) for value in self._rows[found])
        if self._times[found] == place:
            return Second(open_time, open_, high, low, close, volume, 1 if volume > 0 else 0)
        return Second(open_time, close, close, close, close, 0.0, 0)

    def merged(self, open_time: int, end: int) -> Second:
        """Return the seconds from ``open_time`` to ``end`` (exclusive) as one candle."""
        end = open_time + -(-(end - open_time) // SECOND_MS) * SECOND_MS
        first, last = self.second(open_time), self.second(end - SECOND_MS)
        high, low, volume, trades = first.high, first.low, 0.0, 0
        for rows, times in self._stretches(open_time, end):
            if len(rows):
                high, low = max(high, float(rows[:, 1].max())), min(low, float(rows[:, 2].min()))
                volume += times * float(rows[:, 4].sum())
                trades += times * int((rows[:, 4] > 0).sum())
        return Second(open_time, first.open, high, low, last.close, round(volume, 8), trades)

    def _stretches(self, open_time: int, end: int) -> Iterator[tuple[Floats, int]]:
        """Yield the rows of a range and how often each stretch of them was played."""
        start = self._place(open_time)
        stop = start + end - open_time
        whole = (stop - self._first) // self._length_ms  # how often the last row was passed
        if whole == 0:
            yield self._between(start, stop), 1
            return
        yield self._between(start, self._first + self._length_ms), 1
        if whole > 1:
            yield self._rows, whole - 1
        yield self._between(self._first, stop - whole * self._length_ms), 1

    def _between(self, start: int, stop: int) -> Floats:
        low, high = np.searchsorted(self._times, (start, stop))
        return self._rows[low:high]

    def _place(self, open_time: int) -> int:
        """Return which time of the candles is played at ``open_time``."""
        return self._first + open_time // SECOND_MS * SECOND_MS % self._length_ms


def candle(tape: Tape, open_time: int, interval_ms: int, until_ms: float | None = None) -> Second:
    """Put the seconds of one interval together, only those begun before ``until_ms`` for a candle still open."""
    if isinstance(tape, SeededMarket) and interval_ms >= COARSE_FROM_MS:
        return tape.coarse(open_time, interval_ms, until_ms)
    end = open_time + interval_ms if until_ms is None else min(open_time + interval_ms, int(until_ms) + 1)
    if isinstance(tape, PlayedTape):
        return tape.merged(open_time, end)
    parts = [tape.second(time) for time in range(open_time, end, SECOND_MS)]
    return parts[0] if len(parts) == 1 else _merge(open_time, parts)


def _merge(open_time: int, parts: Sequence[Second]) -> Second:
    return Second(
        open_time,
        parts[0].open,
        max(part.high for part in parts),
        min(part.low for part in parts),
        parts[-1].close,
        round(sum(part.volume for part in parts), 8),
        sum(part.trades for part in parts),
    )


def history_start(interval_ms: int) -> int:
    """Return the open time of the first candle there is."""
    return -(-HISTORY_START_MS // interval_ms) * interval_ms
