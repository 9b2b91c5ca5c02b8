"""Tape: everything the features need to know of the candles so far, kept up to date one candle at a time.

Nothing here looks ahead, and nothing is forgotten by rounding: every price quantity is built from differences, so that
mirroring all prices (p -> 2c - p) flips the sign of each odd quantity exactly and leaves each even one untouched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from models.candle import Candle

LAGS = 8
"""Candles whose own return, flags, volume and range are kept one by one."""
GAP_SPANS = (2, 4, 8, 16, 32, 64, 128, 300, 900)
"""Candles over which the moving averages of the close run."""
RANGE_SPANS = (3, 6, 12, 30, 90)
"""Candles over which the highest high and lowest low are taken."""
ACTIVITY_SPANS = (4, 16, 64, 300)
FLOW_SPANS = (4, 16, 64)
MOVE_SPANS = (4, 16, 64, 300)
SCALE_SPAN = 120
VOLUME_SPAN = 300
VWAP_SPANS = (5, 20, 100, 400)
"""Candles over which the volume-weighted average prices fade."""
LAST_MOVES = 4
LAST_TRADED = 5
"""Candles with a trade that are remembered, however long ago they were."""
LARGEST = 1e15
"""Prices in ticks are cut here, where float64 still counts every tick."""
OUTLIER = 50.0
"""Moves and volumes count as at most so many typical ones: one mad candle must not deafen the averages for hours."""


class Ewma:
    """Exponentially weighted mean that is a plain mean while young, so that it needs no warm-up value."""

    __slots__ = ("count", "span", "value")

    def __init__(self, span: int) -> None:
        self.span, self.value, self.count = span, 0.0, 0

    def add(self, value: float) -> None:
        if self.count < self.span:
            self.count += 1
        self.value += (value - self.value) / self.count


class Tape:
    """Incremental state of one unbroken run of candles; all prices in units of ``unit`` (the price tick, or 1)."""

    def __init__(self, tick: float | None) -> None:
        self.tick = tick
        self.age = 0  # candles seen
        self.close = 0.0
        self.returns: deque[float] = deque([0.0] * LAGS, LAGS)  # newest first
        self.opens: deque[float] = deque([0.0] * LAGS, LAGS)  # open - previous close
        self.bodies: deque[float] = deque([0.0] * LAGS, LAGS)  # close - open
        self.tails: deque[float] = deque([0.0] * LAGS, LAGS)  # high + low - 2 close
        self.spreads: deque[float] = deque([0.0] * LAGS, LAGS)  # high - low
        self.volumes: deque[float] = deque([0.0] * LAGS, LAGS)  # relative to VOLUME_SPAN
        self.traded: deque[float] = deque([0.0] * LAGS, LAGS)
        self.moves: deque[float] = deque([0.0] * LAST_MOVES, LAST_MOVES)  # non-zero returns only
        self.move_gaps: deque[int] = deque([0] * LAST_MOVES, LAST_MOVES)  # candles between those moves
        self.traded_tails: deque[float] = deque([0.0] * LAST_TRADED, LAST_TRADED)  # of candles with a trade only
        self.traded_highs: deque[float] = deque([0.0] * LAST_TRADED, LAST_TRADED)  # those highs - the present close
        self.traded_lows: deque[float] = deque([0.0] * LAST_TRADED, LAST_TRADED)  # those lows - the present close
        self.traded_volumes: deque[float] = deque([0.0] * LAST_TRADED, LAST_TRADED)  # relative, as above
        self.since_trade = 0
        self.since_move = 0
        self.run = 0.0  # length of the present run of equal-signed moves, signed
        self.scale = Ewma(SCALE_SPAN)  # typical size of a non-zero move
        self.volume = Ewma(VOLUME_SPAN)
        self.gaps = [0.0] * len(GAP_SPANS)  # close - moving average
        self.vwap_gaps = [0.0] * len(VWAP_SPANS)  # close - volume-weighted average
        self.vwap_volumes = [0.0] * len(VWAP_SPANS)
        self.positions = [0.0] * len(RANGE_SPANS)  # see ``_position``
        self.activity = [Ewma(span) for span in ACTIVITY_SPANS]
        self.trading = [Ewma(span) for span in ACTIVITY_SPANS]
        self.flow = [0.0] * len(FLOW_SPANS)
        self.body_flow = [0.0] * len(FLOW_SPANS)
        self.drift = [0.0] * len(FLOW_SPANS)  # mean sign of the returns
        self.absolute = [Ewma(span) for span in MOVE_SPANS]
        self.range_ewma = [Ewma(span) for span in FLOW_SPANS]
        longest = max(RANGE_SPANS)
        self._highs: deque[float] = deque(maxlen=longest)
        self._lows: deque[float] = deque(maxlen=longest)

    def add(self, candle: Candle) -> None:
        """Take the next consecutive candle."""
        opening, high, low, close = self._units(candle)
        before = self.close if self.age else opening
        move = close - before
        self.age += 1
        self.close = close
        self._highs.appendleft(high)
        self._lows.appendleft(low)
        self.returns.appendleft(move)
        self.opens.appendleft(opening - before)
        self.bodies.appendleft(close - opening)
        self.tails.appendleft((high - close) - (close - low))
        self.spreads.appendleft(high - low)
        self._add_volume(candle.volume)
        self._add_trade(candle.volume, move, high - close, low - close)
        self._add_move(move)
        self._add_averages(move, close - opening, high - low)
        self.positions = [self._position(span) for span in RANGE_SPANS]

    def state_dict(self) -> dict[str, Any]:
        """Give everything as plain lists and numbers."""
        return {name: _plain(value) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the tape that gave the state."""
        for name, value in vars(self).items():
            setattr(self, name, _restored(value, state[name]))

    def _units(self, candle: Candle) -> Sequence[float]:
        prices = (candle.open, candle.high, candle.low, candle.close)
        tick = self.tick
        return prices if tick is None else [float(round(min(price / tick, LARGEST))) for price in prices]

    def _add_volume(self, volume: float) -> None:
        self.since_trade = 0 if volume > 0 else self.since_trade + 1
        self.traded.appendleft(1.0 if volume > 0 else 0.0)
        self.volume.add(_bounded(volume, self.volume.value))
        self.volumes.appendleft(min(volume / self.volume.value, OUTLIER) if self.volume.value > 0 else 0.0)

    def _add_trade(self, volume: float, move: float, high: float, low: float) -> None:
        for i in range(LAST_TRADED):
            self.traded_highs[i] -= move
            self.traded_lows[i] -= move
        if volume > 0:
            self.traded_tails.appendleft(high + low)
            self.traded_highs.appendleft(high)
            self.traded_lows.appendleft(low)
            self.traded_volumes.appendleft(self.volumes[0])
        for i, span in enumerate(VWAP_SPANS):
            total = self.vwap_volumes[i] * (1 - 1 / span) + volume / span
            share = volume / span / total if total > 0 else 0.0
            self.vwap_volumes[i] = total
            self.vwap_gaps[i] = (self.vwap_gaps[i] + move) * (1 - share)

    def _position(self, span: int) -> float:
        """Tell where the close lies between the last ``span`` candles' extremes: -1 at the low, 1 at the high."""
        above = max(islice(self._highs, span)) - self.close
        below = self.close - min(islice(self._lows, span))
        width = above + below
        return (below - above) / width if width > 0 else 0.0

    def _add_move(self, move: float) -> None:
        if move == 0:
            self.since_move += 1
            return
        sign = 1.0 if move > 0 else -1.0
        self.run = self.run + sign if self.run * sign > 0 else sign
        self.scale.add(abs(_bounded(move, self.scale.value)))
        self.moves.appendleft(move)
        self.move_gaps.appendleft(self.since_move + 1)
        self.since_move = 0

    def _add_averages(self, move: float, body: float, spread: float) -> None:
        move, spread = _bounded(move, self.scale.value), _bounded(spread, self.scale.value)
        moved = 0.0 if move == 0 else 1.0
        sign = 0.0 if move == 0 else (1.0 if move > 0 else -1.0)
        body_sign = 0.0 if body == 0 else (1.0 if body > 0 else -1.0)
        volume = min(self.volumes[0], 20.0)
        for i, span in enumerate(GAP_SPANS):
            self.gaps[i] = (self.gaps[i] + move) * (1 - 1 / min(span, self.age + 1))
        for i, span in enumerate(FLOW_SPANS):
            rate = 1 / span
            self.flow[i] += (sign * volume - self.flow[i]) * rate
            self.body_flow[i] += (body_sign * volume - self.body_flow[i]) * rate
            self.drift[i] += (sign - self.drift[i]) * rate
            self.range_ewma[i].add(spread)
        for ewma in self.activity:
            ewma.add(moved)
        for ewma in self.trading:
            ewma.add(self.traded[0])
        for ewma in self.absolute:
            ewma.add(abs(move))


def _bounded(value: float, typical: float) -> float:
    limit = OUTLIER * typical if typical > 0 else LARGEST
    return max(-limit, min(limit, value))


def _plain(value: Any) -> Any:
    if isinstance(value, Ewma):
        return [value.value, value.count]
    if isinstance(value, deque | list):
        return [_plain(item) for item in value]
    return value


def _restored(old: Any, plain: Any) -> Any:
    if isinstance(old, Ewma):
        ewma = Ewma(old.span)
        ewma.value, ewma.count = plain
        return ewma
    if isinstance(old, deque):
        return deque(plain, old.maxlen)
    if isinstance(old, list):
        return [_restored(item, value) for item, value in zip(old, plain, strict=True)]
    return plain
