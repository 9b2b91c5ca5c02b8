"""The regular time grid: seconds without a trade become flat candles, long holes stay holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from models.candle import Candle


def fill_gaps(candles: Iterable[Candle], interval_ms: int, max_fill: int = 60) -> Iterator[Candle]:
    """Yield the candles with up to ``max_fill`` missing ones between two neighbours filled flat.

    A filler has source ``filled``, volume 0 and every price equal to the last close. A longer hole is left as it is, so
    that whoever follows starts a new window there. Candles must rise in time on one grid; ValueError otherwise.
    """
    last: Candle | None = None
    for candle in candles:
        if last is not None:
            yield from _fillers(last, candle, interval_ms, max_fill)
        yield candle
        last = candle


def _fillers(last: Candle, candle: Candle, interval_ms: int, max_fill: int) -> Iterator[Candle]:
    step = candle.open_time - last.open_time
    if step <= 0 or step % interval_ms:
        raise ValueError(f"open_time {candle.open_time} does not follow {last.open_time} on a grid of {interval_ms} ms")
    missing = step // interval_ms - 1
    if missing > max_fill:
        return
    for number in range(1, missing + 1):
        yield flat_candle(last, last.open_time + number * interval_ms)


def flat_candle(last: Candle, open_time: int) -> Candle:
    """Make the candle of an interval without a trade after ``last``."""
    price = last.close
    return Candle(last.market, open_time, price, price, price, price, 0.0, "filled")
