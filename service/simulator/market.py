"""The simulated market: what happened in any second, as a pure function of seed, symbol and time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SECOND_MS = 1_000
TICK = 0.01
HISTORY_START_MS = 1_502_942_400_000  # 2017-08-17, when the real market was listed
BLOCK_SECONDS = 1_024
MAX_QUIET_SECONDS = 32  # a second divisible by this always trades, so "the previous close" is found nearby
MAX_TRADES = 60

_LEVELS = 22  # the slowest wave lasts 2**22 s, about 48 days; beyond that the price does not wander
_COARSE_SAMPLES = 25
_SIGMA_PER_SECOND = 5.0e-5
_HALF_SPREAD = 4.0e-5

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a market as the exchange finally tells it; ``trades`` is 0 in a quiet second."""

    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int


@dataclass(frozen=True, slots=True)
class SeededMarket:
    """A market whose price path follows from ``seed`` and ``symbol`` alone.

    The log price is a random walk built by midpoint displacement (Faber-Schauder waves), whose size follows a slower
    random activity, so volatility clusters; the close is that price plus or minus half a spread, so it bounces.
    """

    symbol: str
    seed: int = 0

    def second(self, open_time: int) -> Second:
        """Return the second that starts at ``open_time`` (UTC ms on the whole second)."""
        number = open_time // SECOND_MS
        return _block(self.symbol, self.seed, number // BLOCK_SECONDS)[number % BLOCK_SECONDS]

    def seconds(self, start: int, end: int) -> list[Second]:
        """Return the seconds from ``start`` (inclusive) to ``end`` (exclusive), both UTC ms, ascending."""
        return [self.second(open_time) for open_time in range(start, end, SECOND_MS)]

    def coarse(self, open_time: int, interval_ms: int, until_ms: float | None = None) -> Second:
        """Return a long candle from samples of the same price path, since its seconds would take long to make.

        Only what happened before ``until_ms`` counts, for a candle still open.
        """
        end = open_time + interval_ms
        return _coarse(
            self.symbol, self.seed, open_time, interval_ms, end if until_ms is None else min(end, int(until_ms))
        )


@lru_cache(maxsize=4_096)
def _coarse(symbol: str, seed: int, open_time: int, interval_ms: int, until: int) -> Second:
    key, base = _key_and_base(symbol, seed)
    times = np.linspace(open_time, open_time + interval_ms, _COARSE_SAMPLES, dtype=np.int64) // SECOND_MS
    times = times[times * SECOND_MS <= until]
    prices = [_round(float(p)) for p in base * np.exp(_log_price(times, key, _activity(times, key)))]
    count = len(prices) * 40
    volume = round(float(_exponential(times, key, 106).sum()) * 40, 4)
    return Second(open_time, prices[0], max(prices), min(prices), prices[-1], volume, count)


# One symbol's present and a deep look back; more would only be kept for nobody.
@lru_cache(maxsize=16)
def _block(symbol: str, seed: int, number: int) -> tuple[Second, ...]:
    key, base = _key_and_base(symbol, seed)
    times = np.arange(number * BLOCK_SECONDS - MAX_QUIET_SECONDS - 1, (number + 1) * BLOCK_SECONDS, dtype=np.int64)
    return tuple(_trade(times, key, base)[-BLOCK_SECONDS:])


def _key_and_base(symbol: str, seed: int) -> tuple[int, float]:
    digest = hashlib.sha256(f"{symbol}:{seed}".encode()).digest()
    base = 2_500.0 if symbol.startswith("ETH") else 10.0 ** (1 + digest[8] % 4) * (1 + digest[9] / 64)
    return int.from_bytes(digest[:8], "big"), base


def _trade(times: Integers, key: int, base: float) -> list[Second]:
    activity = _activity(times, key)
    price = base * np.exp(_log_price(times, key, activity))
    spread = base * _HALF_SPREAD * np.sqrt(activity)
    quiet = (_uniform(times, key, 101) < np.clip(0.6 - 0.25 * activity, 0.02, 0.5)) & (times % MAX_QUIET_SECONDS != 0)
    close = price + spread * _side(times, key)
    first = np.concatenate(([price[0]], price[:-1])) + spread * np.sign(_uniform(times, key, 103) - 0.5)
    wick = spread * _uniform(times, key, 104) ** 2
    trades = 1 + np.minimum(_exponential(times, key, 105) * 6 * activity, MAX_TRADES - 1).astype(np.int64)
    volume = np.round(_exponential(times, key, 106) * trades * 0.35 + 0.0001, 4)
    seconds: list[Second] = []
    last = _round(float(close[0]))
    for i, time in enumerate(times.tolist()):
        if quiet[i]:
            seconds.append(Second(time * SECOND_MS, last, last, last, last, 0.0, 0))
            continue
        last = _round(float(close[i]))
        start = last if trades[i] == 1 else _round(float(first[i]))
        extra = 0.0 if trades[i] < 4 else float(wick[i])
        high = _round(max(start, last) + extra)
        low = _round(min(start, last) - extra)
        seconds.append(Second(time * SECOND_MS, start, high, low, last, float(volume[i]), int(trades[i])))
    return seconds


def _round(price: float) -> float:
    return max(TICK, round(round(price / TICK) * TICK, 2))


def _side(times: Integers, key: int) -> Floats:
    """Side of the last trade, -1 or 1; order flow leans one way for some seconds, so it is not pure noise."""
    lean = 0.35 * _wave(times, key, 120, 64)
    return np.sign(_uniform(times, key, 102) - 0.5 + lean)


def _activity(times: Integers, key: int) -> Floats:
    waves = sum(_wave(times, key, 110 + i, period) for i, period in enumerate((32, 256, 2_048, 16_384)))
    return np.asarray(np.exp(np.clip(1.1 * waves, -2.5, 2.5)))


def _log_price(times: Integers, key: int, activity: Floats) -> Floats:
    total = np.zeros(len(times))
    for level in range(1, _LEVELS + 1):
        period = 1 << level
        number, phase = times // period, times % period
        tent = 1.0 - np.abs(2.0 * phase / period - 1.0)
        # The tent's height is the spread of a Brownian bridge's middle: sigma * sqrt(period) / 2.
        height = _SIGMA_PER_SECOND * period**0.5 / 2
        size = activity**0.5 if level <= 8 else 1.0
        total += size * tent * height * _normal(number, key, level)
    return total


def _wave(times: Integers, key: int, stream: int, period: int) -> Floats:
    """Smooth noise with standard deviation about 0.4, straight lines between normal values each ``period`` seconds."""
    number, phase = times // period, (times % period) / period
    start, end = _normal(number, key, stream), _normal(number + 1, key, stream)
    return np.asarray(0.5 * (start * (1 - phase) + end * phase))


def _normal(numbers: Integers, key: int, stream: int) -> Floats:
    radius = np.sqrt(2 * _exponential(numbers, key, stream))
    return np.asarray(radius * np.cos(2 * np.pi * _uniform(numbers, key, stream + 500)))


def _exponential(numbers: Integers, key: int, stream: int) -> Floats:
    return np.asarray(-np.log1p(-_uniform(numbers, key, stream)))


def _uniform(numbers: Integers, key: int, stream: int) -> Floats:
    """Hash each number to [0, 1) (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= np.uint64((key + stream * 0xD1342543DE82EF95) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) / 2**53
