"""Candle streams for tests: seeded, on a price grid, with quiet seconds and bid-ask bounce."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from models.candle import Candle

TICK = 0.25
"""A power of two, so that prices on the grid are exact."""
START = 1_700_000_000_000


def stream(count: int, seed: int = 0, start: int = START) -> list[Candle]:
    """Make consecutive candles around price 100: prices bounce, about a third of the seconds are without a trade."""
    draw = random.Random(seed)
    middle, close, candles = 400, 400, []
    for number in range(count):
        open_time = start + number * 1000
        if draw.random() < 0.35:
            price = close * TICK
            candles.append(Candle("simulated:ETH/USDT", open_time, price, price, price, price, 0.0, "filled"))
            continue
        middle += draw.choice((-1, 0, 0, 1))
        opening, close = close + draw.choice((-1, 0, 0, 1)), middle + draw.choice((-1, 1))
        high, low = max(opening, close) + draw.choice((0, 0, 1)), min(opening, close) - draw.choice((0, 0, 1))
        volume = draw.expovariate(1.0)
        prices = (opening * TICK, high * TICK, low * TICK, close * TICK)
        candles.append(Candle("simulated:ETH/USDT", open_time, *prices, volume, "live"))
    return candles


def mirrored(candles: Sequence[Candle], centre: float = 100.0) -> list[Candle]:
    """Flip prices up and down around ``centre``."""
    return [
        replace(
            c, open=2 * centre - c.open, high=2 * centre - c.low, low=2 * centre - c.high, close=2 * centre - c.close
        )
        for c in candles
    ]
