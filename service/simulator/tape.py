"""What the simulated exchange knows to be true: every second of every symbol, and candles made of them."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from service.ports import ConfigurationError
from service.simulator.market import HISTORY_START_MS, SECOND_MS, Second, SeededMarket

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


class FileTape:
    """A candle file played over and over, laid on wall time so that a restart sees the same history.

    Seconds that the file lacks are quiet ones.
    """

    def __init__(self, path: Path) -> None:
        rows = _read(path)
        if not rows:
            raise ConfigurationError(f"{path}: no candles in the file")
        self._rows = rows
        self._first = min(rows)
        self._length = (max(rows) - self._first) // SECOND_MS + 1

    def second(self, open_time: int) -> Second:
        place = self._first + (open_time // SECOND_MS % self._length) * SECOND_MS
        row = self._rows.get(place)
        if row is not None:
            open_, high, low, close, volume = row
            return Second(open_time, open_, high, low, close, volume, 1 if volume > 0 else 0)
        while place not in self._rows:
            place -= SECOND_MS
        last = self._rows[place][3]
        return Second(open_time, last, last, last, last, 0.0, 0)


def candle(tape: Tape, open_time: int, interval_ms: int, until_ms: float | None = None) -> Second:
    """Put the seconds of one interval together, only those begun before ``until_ms`` for a candle still open."""
    if isinstance(tape, SeededMarket) and interval_ms >= COARSE_FROM_MS:
        return tape.coarse(open_time, interval_ms, until_ms)
    end = open_time + interval_ms if until_ms is None else min(open_time + interval_ms, int(until_ms) + 1)
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


def make_tape(symbol: str, seed: int, candles: Path | None) -> Tape:
    """Return the symbol's seeded market, or the candle file when one is given."""
    return SeededMarket(symbol, seed) if candles is None else FileTape(candles)


def history_start(interval_ms: int) -> int:
    """Return the open time of the first candle there is."""
    return -(-HISTORY_START_MS // interval_ms) * interval_ms


def _read(path: Path) -> dict[int, tuple[float, float, float, float, float]]:
    opener = gzip.open if path.suffix == ".gz" else open
    rows: dict[int, tuple[float, float, float, float, float]] = {}
    try:
        with opener(path, "rt", newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            for row in reader:
                time, open_, high, low, close, volume = (float(value) for value in row)
                rows[int(time)] = (open_, high, low, close, volume)
    except (OSError, EOFError, ValueError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a readable candle file ({error})") from error
    return rows
