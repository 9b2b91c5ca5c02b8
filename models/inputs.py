"""Inputs of the linear skip: the features, and products of pairs of them that keep parity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.features import EVEN, EVEN_NAMES, ODD, ODD_NAMES, Family, Features, Vector

ODD_FACTORS = [
    "return.0",
    "return.1",
    "return.2",
    "sign.0",
    "sign.1",
    "gap.2",
    "gap.4",
    "gap.8",
    "gap.16",
    "gap.64",
    "gap.300",
    "position.3",
    "position.6",
    "position.12",
    "position.30",
    "tail.0",
    "body.0",
    "flow.4",
    "move.0",
    "move.1",
    "move.2",
    "move_sign.0",
    "move_sign.1",
    "fresh_move.2",
]
EVEN_FACTORS = [
    "moved.0",
    "moved.1",
    "traded.0",
    "traded.1",
    "volume.0",
    "volume.1",
    "size.0",
    "range.0",
    "activity.4",
    "activity.16",
    "activity.64",
    "trading.16",
    "since_trade.0",
    "since_move.0",
    "move_gap.0",
    "volatility.4",
]
ODD_PAIR_FACTORS = [
    "return.0",
    "sign.0",
    "gap.2",
    "gap.4",
    "gap.8",
    "gap.16",
    "position.3",
    "position.6",
    "position.12",
    "position.30",
    "move.0",
    "move.1",
    "move.2",
    "move_sign.0",
    "move_sign.1",
]

INPUT_SCALE = 0.05
"""Keeps the norm of all inputs, and so of the skip's gradient, well under the clip norm."""

PRIORS: dict[str, float] = {}
"""Prior variance of the weights by family, for unscaled inputs; chosen on 2019-06-02."""
DEFAULT_PRIOR = 0.1
PRODUCT_PRIORS = {"odd_even": 0.01, "odd_odd": 0.03, "even_even": 0.03}

_Index = npt.NDArray[np.intp]


def _pairs(
    first: list[str], first_names: list[str], second: list[str], second_names: list[str]
) -> tuple[_Index, _Index]:
    pairs = [(first_names.index(a), second_names.index(b)) for a in first for b in second]
    return np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])


def _own_pairs(factors: list[str], names: list[str], squares: bool) -> tuple[_Index, _Index]:
    columns = [names.index(name) for name in factors]
    pairs = [(a, b) for i, a in enumerate(columns) for b in columns[i + (not squares) :]]
    return np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])


_ODD_EVEN = _pairs(ODD_FACTORS, ODD_NAMES, EVEN_FACTORS, EVEN_NAMES)
_ODD_ODD = _own_pairs(ODD_PAIR_FACTORS, ODD_NAMES, squares=True)
_EVEN_EVEN = _own_pairs(EVEN_FACTORS, EVEN_NAMES, squares=False)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the skip's layers read of one candle, scaled: odd and even ones with products, and the plain ones."""

    odd: Vector
    even: Vector
    plain_odd: Vector
    plain_even: Vector


def inputs(features: Features) -> Inputs:
    """Form the skip's inputs of one candle."""
    odd, even = features.odd, features.even
    odd_full = np.concatenate((odd, odd[_ODD_EVEN[0]] * even[_ODD_EVEN[1]])) * INPUT_SCALE
    even_full = np.concatenate((even, odd[_ODD_ODD[0]] * odd[_ODD_ODD[1]], even[_EVEN_EVEN[0]] * even[_EVEN_EVEN[1]]))
    return Inputs(odd_full, even_full * INPUT_SCALE, odd * INPUT_SCALE, even * INPUT_SCALE)


def prior(families: tuple[Family, ...], with_products: bool = False) -> Vector:
    """Give the prior variances of the weights on scaled inputs, in order of the inputs."""
    table = [PRIORS.get(family.name, DEFAULT_PRIOR) for family in families for _ in family.marks]
    if with_products and families is ODD:
        table += [PRODUCT_PRIORS["odd_even"]] * len(_ODD_EVEN[0])
    elif with_products and families is EVEN:
        table += [PRODUCT_PRIORS["odd_odd"]] * len(_ODD_ODD[0]) + [PRODUCT_PRIORS["even_even"]] * len(_EVEN_EVEN[0])
    return np.array(table) / INPUT_SCALE**2
