"""What the rival exchange says happened: seconds made of single trades, so that every partial candle is a true one."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

SECOND = 1_000
HISTORY = 900


@dataclass(frozen=True, slots=True)
class Row:
    """One second as it stands."""

    time: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int

    @property
    def values(self) -> tuple[float, float, float, float, float]:
        return self.open, self.high, self.low, self.close, self.volume

    def kline(self) -> list[Any]:
        texts = [f"{value:.8f}" for value in self.values]
        return [self.time, *texts, self.time + 999, "1.0", self.trades, "0.5", "0.5", "0"]

    def frame(self, symbol: str, now: float, *, closed: bool, style: str = "plain") -> dict[str, Any]:
        texts: list[Any] = [f"{value:.8f}" for value in self.values]
        if style == "exponent":
            texts = [f"{value:.12e}" for value in self.values]
        elif style == "numbers":
            texts = list(self.values)
        o, h, l, c, v = texts  # noqa: E741 - Binance's names
        k = {"t": self.time, "T": self.time + 999, "s": symbol, "i": "1s", "o": o, "h": h, "l": l, "c": c, "v": v}
        frame = {"e": "kline", "E": int(now), "s": symbol, "k": {**k, "n": self.trades, "x": closed, "f": 1, "L": 2}}
        if style == "extra":
            return {"new": [1], **frame, "k": {**frame["k"], "zz": {"a": None}}}
        return {"stream": f"{symbol.lower()}@kline_1s", "data": frame} if style == "combined" else frame


class RivalMarket:
    """Second by second, each made once and kept; ``erase`` and ``correct`` change what was."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seconds: dict[int, list[tuple[int, float, float]]] = {}
        self._opens: dict[int, float] = {}
        self._gone: set[int] = set()
        self._corrected: dict[int, float] = {}
        self._price = 2_000.0
        self._next = 0

    def begin(self, now: float) -> None:
        self._next = int(now) // SECOND * SECOND - HISTORY * SECOND
        self._make(int(now) // SECOND * SECOND)

    def row(self, time: int, now: float) -> Row | None:
        """Return the second as known at ``now``; None where there is none, or not yet."""
        if time > now or time in self._gone:
            return None
        self._make(time)
        if time not in self._seconds:
            return None
        trades = [trade for trade in self._seconds[time] if time + trade[0] <= now]
        opened = self._opens[time]
        prices = [opened, *(price for _, price, _ in trades)] if not trades else [price for _, price, _ in trades]
        volume = round(sum(amount for _, _, amount in trades), 8)
        row = Row(time, prices[0], max(prices), min(prices), prices[-1], volume, len(trades))
        more = self._corrected.get(time)
        return row if more is None else replace(row, volume=round(row.volume + more, 8), high=row.high + 0.5)

    def rows(self, start: int, limit: int, now: float) -> list[Row]:
        found: list[Row] = []
        time = max(start, min(self._seconds))
        while time <= now and len(found) < limit:
            row = self.row(time, now)
            found.extend([row] if row is not None else [])
            time += SECOND
        return found

    def erase(self, start: int, count: int) -> None:
        self._gone |= {start + n * SECOND for n in range(count)}

    def correct(self, time: int) -> None:
        self._corrected[time] = self._corrected.get(time, 0.0) + 1.25

    def _make(self, until: int) -> None:
        while self._next <= until:
            self._opens[self._next] = self._price
            trades = []
            for after in sorted(self._random.sample(range(1_000), self._random.choice((0, 0, 1, 2, 5)))):
                self._price = round(max(1.0, self._price + self._random.choice((-0.02, -0.01, 0, 0.01, 0.02))), 2)
                trades.append((after, self._price, round(self._random.uniform(0.001, 3), 4)))
            self._seconds[self._next] = trades
            self._next += SECOND
