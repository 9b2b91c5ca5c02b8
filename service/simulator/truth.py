"""The simulated exchange's memory: the tape, and where it later decided that something else had happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.candle import Candle
from service.simulator.market import SECOND_MS, TICK, Second, SeededMarket
from service.simulator.tape import PlayedTape, Tape, candle, history_start


class Truth:
    """What happened, second by second; ``correct`` and ``erase`` change it for good.

    Symbols are Binance ids (``ETHUSDT``).
    """

    def __init__(self, symbols: dict[str, str], seed: int, candles: Sequence[Candle] | None = None) -> None:
        self.symbols = symbols
        played = None if candles is None else PlayedTape(candles)
        self._tapes: dict[str, Tape] = {id_: played or SeededMarket(symbol, seed) for id_, symbol in symbols.items()}
        self._changed: dict[tuple[str, int], Second] = {}
        self._erased: dict[str, set[int]] = {id_: set() for id_ in symbols}

    def candle(self, id_: str, open_time: int, interval_ms: int, until_ms: float | None = None) -> Second | None:
        """Return one candle, or None when the exchange never had it."""
        if interval_ms == SECOND_MS:
            if open_time in self._erased[id_]:
                return None
            changed = self._changed.get((id_, open_time))
            if changed is not None:
                return changed
        return candle(self._tapes[id_], open_time, interval_ms, until_ms)

    def between(self, id_: str, interval_ms: int, start: int, end: float) -> Iterator[Second]:
        """Yield the candles opened from ``start`` (inclusive) to ``end`` (exclusive), ascending."""
        time = max(-(-start // interval_ms) * interval_ms, history_start(interval_ms))
        while time < end:
            found = self.candle(id_, time, interval_ms)
            if found is not None:
                yield found
            time += interval_ms

    def correct(self, id_: str, open_time: int) -> Second | None:
        """Change a second that is over: close and high one price tick up, more volume; returns what it is now."""
        old = self.candle(id_, open_time, SECOND_MS)
        if old is None:
            return None
        close = round(old.close + TICK, 8)
        new = replace(
            old, close=close, high=max(old.high, close), volume=round(old.volume + 1, 8), trades=old.trades + 1
        )
        self._changed[(id_, open_time)] = new
        return new

    def erase(self, id_: str, start: int, count: int) -> None:
        """Make the exchange have no candles for ``count`` seconds from ``start``."""
        self._erased[id_].update(range(start, start + count * SECOND_MS, SECOND_MS))

    def close_before(self, id_: str, open_time: int) -> float:
        """Return the last close before ``open_time``."""
        return self._tapes[id_].second(open_time - SECOND_MS).close
