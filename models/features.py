"""Features of a candle in its window: a table of named transforms, split by their parity under the price mirror.

Mirroring every price (p -> 2c - p) leaves an *even* feature unchanged and flips the sign of an *odd* one, exactly. All
prices are measured in typical moves (``Tape.scale``, the mean size of a non-zero one), two of them where not said
otherwise, and pass through tanh, so that every feature lies in about -1..1. Even ones are centred. A feature
of candle t uses candles up to t only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log, log1p, sqrt, tanh

import numpy as np
import numpy.typing as npt

from models.candle import Candle
from models.tape import (
    ACTIVITY_SPANS,
    FLOW_SPANS,
    GAP_SPANS,
    LAGS,
    LAST_MOVES,
    MOVE_SPANS,
    RANGE_SPANS,
    VWAP_SPANS,
    Tape,
)

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Family:
    """Features computed alike: one value for each of ``marks`` (lags or spans); ``note`` gives meaning and unit.

    ``token`` says how many of them, from the first on, the sequence network reads of each candle: lags are left out,
    because the sequence itself holds them.
    """

    name: str
    marks: tuple[int, ...]
    note: str
    values: Callable[[Tape, float], Iterable[float]]
    token: int


def _sign(value: float) -> float:
    return 0.0 if value == 0 else (1.0 if value > 0 else -1.0)


def _moves(values: Iterable[float], scale: float) -> list[float]:
    return [tanh(value / (2 * scale)) for value in values]


def _middles(highs: Iterable[float], lows: Iterable[float], scale: float) -> list[float]:
    pairs = list(zip(_moves(highs, scale), _moves(lows, scale), strict=True))
    return [high + low for high, low in pairs[1:]]


def _sizes(values: Iterable[float], scale: float, centre: float) -> list[float]:
    return [tanh(abs(value) / (2 * scale)) - centre for value in values]


def _gaps(values: Iterable[float], spans: Iterable[int], scale: float) -> list[float]:
    # A random walk strays from its average over N steps by about N^.5 / 2 steps.
    return [tanh(2 * value / (scale * sqrt(span))) for value, span in zip(values, spans, strict=True)]


def _counts(values: Iterable[int], centre: float) -> list[float]:
    return [tanh(log1p(value) / 2) - centre for value in values]


def _volumes(values: Iterable[float]) -> list[float]:
    return [tanh(0.7 * log1p(4 * value) - 0.5) for value in values]


_LAGS = tuple(range(LAGS))
_FEW = (0, 1, 2, 3)
_LAST = tuple(range(LAST_MOVES))
_SIZED = (2, 4, 16, 64, 300)  # spans of GAP_SPANS whose size is a feature too
_SIZED_PLACES = [GAP_SPANS.index(span) for span in _SIZED]

# fmt: off
ODD: tuple[Family, ...] = (
    Family("return", _LAGS, "close - previous close", lambda t, s: _moves(t.returns, s), 1),
    Family("sign", _LAGS, "its sign", lambda t, s: [_sign(r) for r in t.returns], 1),
    Family("gap", GAP_SPANS, "close - its average over N candles", lambda t, s: _gaps(t.gaps, GAP_SPANS, s), 9),
    Family("position", RANGE_SPANS, "close between low (-1) and high (1) of N candles", lambda t, s: t.positions, 5),
    Family("tail", _FEW, "high + low - 2 close", lambda t, s: _moves((t.tails[i] for i in _FEW), s), 1),
    Family("body", _FEW, "close - open", lambda t, s: _moves((t.bodies[i] for i in _FEW), s), 1),
    Family("jump", (0, 1), "open - previous close", lambda t, s: _moves((t.opens[i] for i in (0, 1)), s), 1),
    Family("flow", FLOW_SPANS, "mean of sign x volume over N candles", lambda t, s: [tanh(f) for f in t.flow], 3),
    Family("body_flow", FLOW_SPANS, "the same with the sign of close - open",
           lambda t, s: [tanh(f) for f in t.body_flow], 3),
    Family("drift", FLOW_SPANS, "mean sign over N candles", lambda t, s: t.drift, 3),
    Family("move", _LAST, "the last non-zero returns", lambda t, s: _moves(t.moves, s), 4),
    Family("move_sign", _LAST, "their signs", lambda t, s: [_sign(m) for m in t.moves], 4),
    Family("fresh_move", (2, 8), "sign of the last move, fading over N candles",
           lambda t, s: [_sign(t.moves[0]) * exp(-t.since_move / n) for n in (2, 8)], 2),
    Family("run", (0,), "signed number of equal moves in a row, over 3", lambda t, s: [tanh(t.run / 3)], 1),
    Family("traded_tail", _FEW, "tail of the last candles with a trade",
           lambda t, s: _moves((t.traded_tails[i] for i in _FEW), s), 1),
    Family("traded_middle", (1, 2, 3, 4), "their high and low against the present close, last but N",
           lambda t, s: _middles(t.traded_highs, t.traded_lows, s), 1),
    Family("vwap_gap", VWAP_SPANS, "close - volume-weighted average over N candles",
           lambda t, s: _gaps(t.vwap_gaps, VWAP_SPANS, s), 4),
)

EVEN: tuple[Family, ...] = (
    Family("one", (0,), "constant 1", lambda t, s: [1.0], 1),
    Family("moved", _LAGS, "whether the close moved", lambda t, s: [0.25 if r else -0.25 for r in t.returns], 1),
    Family("traded", _LAGS, "whether anything traded", lambda t, s: [v - 0.5 for v in t.traded], 1),
    Family("volume", _LAGS, "log volume over its mean of 300 candles", lambda t, s: _volumes(t.volumes), 1),
    Family("size", _FEW, "absolute return", lambda t, s: _sizes((t.returns[i] for i in _FEW), s, 0.0), 1),
    Family("range", _FEW, "high - low", lambda t, s: _sizes((t.spreads[i] for i in _FEW), s, 0.3), 1),
    Family("activity", ACTIVITY_SPANS, "share of N that moved", lambda t, s: [e.value - 0.5 for e in t.activity], 4),
    Family("trading", ACTIVITY_SPANS, "share of N with a trade", lambda t, s: [e.value - 0.6 for e in t.trading], 4),
    Family("since_trade", (0,), "log candles since the last trade", lambda t, s: _counts((t.since_trade,), 0.0), 1),
    Family("since_move", (0,), "log candles since the last move", lambda t, s: _counts((t.since_move,), 0.0), 1),
    Family("move_gap", _LAST, "log candles between the last moves", lambda t, s: _counts(t.move_gaps, 0.4), 4),
    Family("move_size", _LAST, "absolute size of the last moves", lambda t, s: _sizes(t.moves, s, 0.4), 4),
    Family("volatility", MOVE_SPANS, "mean absolute return over N candles",
           lambda t, s: [tanh(e.value / s) - 0.3 for e in t.absolute], 4),
    Family("spread", FLOW_SPANS, "mean high - low over N candles",
           lambda t, s: _sizes((e.value for e in t.range_ewma), s, 0.3), 3),
    Family("scale", (0,), "log typical move in ticks", lambda t, s: [tanh(0.3 * log(s)) if t.tick else 0.0], 1),
    Family("traded_volume", _FEW, "volume of the last candles with a trade",
           lambda t, s: _volumes(t.traded_volumes[i] for i in _FEW), 1),
    Family("gap_size", _SIZED, "size of gap",
           lambda t, s: [abs(g) - 0.4 for g in _gaps([t.gaps[i] for i in _SIZED_PLACES], _SIZED, s)], 0),
    Family("edge", RANGE_SPANS, "size of position", lambda t, s: [abs(p) - 0.5 for p in t.positions], 0),
)
# fmt: on


def names(families: tuple[Family, ...]) -> list[str]:
    """List the features of a table in order, as ``family.mark``."""
    return [f"{family.name}.{mark}" for family in families for mark in family.marks]


def token_columns(families: tuple[Family, ...]) -> list[int]:
    """List the positions of the features that the sequence network reads of each candle."""
    columns: list[int] = []
    start = 0
    for family in families:
        columns += range(start, start + family.token)
        start += len(family.marks)
    return columns


ODD_NAMES, EVEN_NAMES = names(ODD), names(EVEN)


@dataclass(frozen=True, slots=True)
class Features:
    """Features of one candle: ``odd`` (len(ODD_NAMES),), ``even`` (len(EVEN_NAMES),), and the price ``scale`` used.

    ``scale`` is the size of a typical non-zero move in price units of the market.
    """

    odd: Vector
    even: Vector
    scale: float

    @property
    def joined(self) -> Vector:
        """Odd features, then even ones."""
        return np.concatenate((self.odd, self.even))


def features(tape: Tape) -> Features:
    """Compute the features of the tape's newest candle."""
    scale = tape.scale.value or 1.0
    odd = [value for family in ODD for value in family.values(tape, scale)]
    even = [value for family in EVEN for value in family.values(tape, scale)]
    return Features(np.array(odd), np.array(even), scale * (tape.tick or 1.0))


def feature_rows(candles: Iterable[Candle], tick: float | None) -> list[Features]:
    """Compute the features of each of some consecutive candles, as live."""
    tape = Tape(tick)
    rows = []
    for candle in candles:
        tape.add(candle)
        rows.append(features(tape))
    return rows
