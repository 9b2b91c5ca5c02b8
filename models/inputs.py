"""Inputs of the linear skip: the features, and products of pairs of them that keep parity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.features import EVEN, EVEN_NAMES, ODD, ODD_NAMES, Family, Features, Vector


@dataclass(frozen=True, slots=True)
class Products:
    """Products of each feature named in ``first`` with each in ``second``; ``prior`` is their weights' variance."""

    note: str
    first: str
    second: str
    prior: float


ODD_PRODUCTS = (
    Products(
        "the last seconds' moves, by how busy it is",
        "return.0 sign.0 gap.2 gap.4 gap.8 gap.16 position.3 position.6 tail.0 body.0 flow.4 move.0 move.1 move_sign.0",
        "moved.0 moved.1 traded.0 traded.1 volume.0 volume.1 size.0 range.0 activity.4 activity.16 activity.64 "
        "trading.16 since_trade.0 since_move.0 move_gap.0 volatility.4",
        0.002,
    ),
    Products(
        "slow trends, by how far the price has run",
        "gap.32 gap.64 gap.128 gap.300 gap.900 vwap_gap.20 vwap_gap.100 vwap_gap.400 position.90 drift.64 flow.64 "
        "run.0",
        "edge.6 edge.12 edge.30 gap_size.4 gap_size.16 traded_volume.0",
        0.06,
    ),
    Products(
        "where the last trades were, by how old and large they are",
        "traded_middle.1 traded_middle.2 traded_middle.3 traded_tail.0 traded_tail.1 traded_tail.2",
        "traded.0 traded_volume.0 traded_volume.1 trading.16 since_trade.0 since_move.0 edge.12 edge.90 range.0 "
        "volatility.4 size.0 activity.16",
        0.03,
    ),
)
EVEN_PRODUCTS = (
    Products(
        "slow trends with or against fast ones",
        "gap.300 gap.900 vwap_gap.400 flow.16 flow.64 drift.16",
        "traded_middle.1 traded_middle.2 traded_middle.3 position.6 gap.2 gap.4 gap.8 drift.4 move.0 position.12 "
        "flow.16 gap.16",
        0.0025,
    ),
    Products(
        "ranges, by how busy it is",
        "spread.4 spread.16 range.0 range.1 range.2 gap_size.64 gap_size.300 traded_volume.0 traded_volume.1",
        "spread.4 spread.16 range.0 range.1 range.2 trading.4 trading.16 activity.4 activity.16 since_trade.0 "
        "gap_size.16 gap_size.64 gap_size.300 traded_volume.0 traded_volume.1 traded.2 moved.2",
        0.03,
    ),
)

INPUT_SCALE = 0.03
"""Keeps the norm of all inputs, and so of the skip's gradient, well under the clip norm."""

PRIORS: dict[str, float] = {
    "return": 0.03, "sign": 0.001, "gap": 0.05, "position": 0.03, "tail": 0.025, "body": 0.025, "jump": 0.003,
    "flow": 0.06, "body_flow": 0.015, "drift": 0.015, "move": 0.1, "move_sign": 0.01, "fresh_move": 0.002, "run": 0.25,
    "traded_tail": 0.5, "traded_middle": 0.2, "vwap_gap": 0.05,
    "one": 20.0, "moved": 0.001, "traded": 0.025, "volume": 0.01, "size": 0.001, "range": 0.06, "activity": 0.005,
    "trading": 1.0, "since_trade": 5.0, "since_move": 0.1, "move_gap": 0.001, "move_size": 0.005, "volatility": 0.01,
    "spread": 0.2, "scale": 0.2, "traded_volume": 0.05, "gap_size": 0.05, "edge": 0.0125,
}  # fmt: skip
"""Prior variance of the weights by family, for unscaled inputs; chosen on 2019-06-02."""

_Index = npt.NDArray[np.intp]


def _pairs(tables: tuple[Products, ...]) -> tuple[_Index, _Index, list[float]]:
    """Find the columns of every pair, each once, among odd features followed by even ones."""
    names = ODD_NAMES + EVEN_NAMES
    priors: dict[tuple[int, int], float] = {}
    for table in tables:
        for a in table.first.split():
            for b in table.second.split():
                pair = (names.index(a), names.index(b))
                if pair[::-1] not in priors:
                    priors.setdefault(pair, table.prior)
    return np.array([a for a, _ in priors]), np.array([b for _, b in priors]), list(priors.values())


_ODD_FIRST, _ODD_SECOND, _ODD_PRIORS = _pairs(ODD_PRODUCTS)
_EVEN_FIRST, _EVEN_SECOND, _EVEN_PRIORS = _pairs(EVEN_PRODUCTS)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the skip's layers read of one candle, scaled: odd and even ones with products, and the plain ones."""

    odd: Vector
    even: Vector
    plain_odd: Vector
    plain_even: Vector


def inputs(features: Features) -> Inputs:
    """Form the skip's inputs of one candle."""
    values = features.joined * INPUT_SCALE
    by = features.joined
    odd, even = values[: len(ODD_NAMES)], values[len(ODD_NAMES) :]
    return Inputs(
        np.concatenate((odd, values[_ODD_FIRST] * by[_ODD_SECOND])),
        np.concatenate((even, values[_EVEN_FIRST] * by[_EVEN_SECOND])),
        odd,
        even,
    )


def odd_prior() -> Vector:
    """Give the prior variances of the weights of all odd inputs, scaled as they are."""
    return np.array(_plain(ODD) + _ODD_PRIORS) / INPUT_SCALE**2


def even_prior() -> Vector:
    """Give the prior variances of the weights of all even inputs, scaled as they are."""
    return np.array(_plain(EVEN) + _EVEN_PRIORS) / INPUT_SCALE**2


def _plain(families: tuple[Family, ...]) -> list[float]:
    return [PRIORS[family.name] for family in families for _ in family.marks]
