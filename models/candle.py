"""Candle: one closed OHLCV interval, valid by construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Source = Literal["live", "backfill", "filled"]
SOURCES: tuple[Source, ...] = ("live", "backfill", "filled")


class InvalidCandle(ValueError):
    """A row that breaks an invariant of a candle.

    ``reason`` is one word from a closed set, fit for a counter's label.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Candle:
    """One closed interval of one market.

    ``open_time`` is the interval's start in UTC milliseconds. Prices are finite and positive with
    low <= open, close <= high; volume is finite and not negative. Anything else raises InvalidCandle.
    """

    market: str
    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    source: Source = "live"

    def __post_init__(self) -> None:
        prices = (self.open, self.high, self.low, self.close)
        if type(self.open_time) is not int or not 0 < self.open_time < 2**53:
            raise InvalidCandle("time", f"open_time was {self.open_time!r}, not UTC milliseconds")
        if not all(math.isfinite(value) for value in (*prices, self.volume)):
            raise InvalidCandle("nonfinite", "a price or the volume was not finite")
        if min(prices) <= 0:
            raise InvalidCandle("price", f"the lowest price was {min(prices)}, not above 0")
        if self.low > self.high:
            raise InvalidCandle("range", f"low was {self.low}, above high {self.high}")
        if not (self.low <= min(self.open, self.close) and max(self.open, self.close) <= self.high):
            raise InvalidCandle("range", f"open {self.open} or close {self.close} lay outside {self.low}..{self.high}")
        if self.volume < 0:
            raise InvalidCandle("volume", f"volume was {self.volume}, below 0")
