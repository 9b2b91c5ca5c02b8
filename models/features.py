"""Features of a candle in its window: a table of named transforms, split by their parity under the price mirror.

Mirroring every price (p -> 2c - p) leaves an *even* feature unchanged and flips the sign of an *odd* one, exactly. All
prices are measured in units of the typical size of a non-zero move (``Tape.scale``) and pass through tanh, so that
every feature lies in about -1..1. A feature of candle t uses candles up to t only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log, log1p, sqrt, tanh
from typing import Any

import numpy as np
import numpy.typing as npt

from models.candle import Candle
from models.tape import ACTIVITY_SPANS, FLOW_SPANS, GAP_SPANS, LAGS, LAST_MOVES, MOVE_SPANS, RANGE_SPANS, Tape

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


_LAGS = tuple(range(LAGS))
_FEW = (0, 1, 2, 3)

ODD: tuple[Family, ...] = (
    Family(
        "return",
        _LAGS,
        "close - previous close, over 2 typical moves",
        lambda t, s: [tanh(r / (2 * s)) for r in t.returns],
        1,
    ),
    Family("sign", _LAGS, "sign of that return", lambda t, s: [_sign(r) for r in t.returns], 1),
    Family(
        "gap",
        GAP_SPANS,
        "close - its moving average over N candles, over N^.5 / 2 typical moves",
        lambda t, s: [tanh(2 * g / (s * sqrt(n))) for g, n in zip(t.gaps, GAP_SPANS, strict=True)],
        9,
    ),
    Family(
        "position",
        RANGE_SPANS,
        "close between the low (-1) and the high (1) of N candles",
        lambda t, s: [t.position(n) for n in RANGE_SPANS],
        5,
    ),
    Family(
        "tail",
        _FEW,
        "high + low - 2 close, over 2 typical moves",
        lambda t, s: [tanh(t.tails[i] / (2 * s)) for i in _FEW],
        1,
    ),
    Family(
        "body", _FEW, "close - open, over 2 typical moves", lambda t, s: [tanh(t.bodies[i] / (2 * s)) for i in _FEW], 1
    ),
    Family(
        "jump",
        (0, 1),
        "open - previous close, over 2 typical moves",
        lambda t, s: [tanh(t.opens[i] / (2 * s)) for i in (0, 1)],
        1,
    ),
    Family(
        "flow",
        FLOW_SPANS,
        "mean of sign times relative volume over N candles",
        lambda t, s: [tanh(f) for f in t.flow],
        3,
    ),
    Family(
        "body_flow",
        FLOW_SPANS,
        "mean of the body's sign times relative volume over N candles",
        lambda t, s: [tanh(f) for f in t.body_flow],
        3,
    ),
    Family("drift", FLOW_SPANS, "mean sign of the returns over N candles", lambda t, s: t.drift, 3),
    Family(
        "move",
        tuple(range(LAST_MOVES)),
        "the last non-zero moves, over 2 typical moves",
        lambda t, s: [tanh(m / (2 * s)) for m in t.moves],
        4,
    ),
    Family("move_sign", tuple(range(LAST_MOVES)), "their signs", lambda t, s: [_sign(m) for m in t.moves], 4),
    Family(
        "fresh_move",
        (2, 8),
        "sign of the last move, fading over N candles",
        lambda t, s: [_sign(t.moves[0]) * exp(-t.since_move / n) for n in (2, 8)],
        2,
    ),
    Family("run", (0,), "signed length of the run of equal moves, over 3", lambda t, s: [tanh(t.run / 3)], 1),
)

EVEN: tuple[Family, ...] = (
    Family("one", (0,), "constant 1", lambda t, s: [1.0], 1),
    Family(
        "moved", _LAGS, "whether the close moved, centred", lambda t, s: [0.5 * (r != 0) - 0.25 for r in t.returns], 1
    ),
    Family("traded", _LAGS, "whether anything traded, centred", lambda t, s: [v - 0.5 for v in t.traded], 1),
    Family(
        "volume",
        _LAGS,
        "log volume relative to its mean of 300 candles",
        lambda t, s: [tanh(0.7 * log1p(4 * v) - 0.5) for v in t.volumes],
        1,
    ),
    Family(
        "size",
        _FEW,
        "absolute return, over 2 typical moves",
        lambda t, s: [tanh(abs(t.returns[i]) / (2 * s)) for i in _FEW],
        1,
    ),
    Family(
        "range",
        _FEW,
        "high - low, over 2 typical moves",
        lambda t, s: [tanh(t.spreads[i] / (2 * s)) - 0.3 for i in _FEW],
        1,
    ),
    Family(
        "activity",
        ACTIVITY_SPANS,
        "share of candles that moved over N, centred",
        lambda t, s: [e.value - 0.5 for e in t.activity],
        4,
    ),
    Family(
        "trading",
        ACTIVITY_SPANS,
        "share of candles with a trade over N, centred",
        lambda t, s: [e.value - 0.6 for e in t.trading],
        4,
    ),
    Family("since_trade", (0,), "log candles since the last trade", lambda t, s: [tanh(log1p(t.since_trade) / 2)], 1),
    Family("since_move", (0,), "log candles since the last move", lambda t, s: [tanh(log1p(t.since_move) / 2)], 1),
    Family(
        "move_gap",
        tuple(range(LAST_MOVES)),
        "log candles between the last moves, centred",
        lambda t, s: [tanh(log1p(g) / 2) - 0.4 for g in t.move_gaps],
        4,
    ),
    Family(
        "move_size",
        tuple(range(LAST_MOVES)),
        "absolute size of the last moves, over 2 typical moves",
        lambda t, s: [tanh(abs(m) / (2 * s)) - 0.4 for m in t.moves],
        4,
    ),
    Family(
        "volatility",
        MOVE_SPANS,
        "mean absolute return over N candles, in typical moves",
        lambda t, s: [tanh(e.value / s) - 0.3 for e in t.absolute],
        4,
    ),
    Family(
        "spread",
        FLOW_SPANS,
        "mean high - low over N candles, in typical moves",
        lambda t, s: [tanh(e.value / (2 * s)) - 0.3 for e in t.range_ewma],
        3,
    ),
    Family("scale", (0,), "log of the typical move in ticks", lambda t, s: [tanh(0.3 * log(s)) if t.tick else 0.0], 1),
)


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
TABLES: dict[str, Any] = {"odd": ODD, "even": EVEN}


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
