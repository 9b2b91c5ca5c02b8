from collections.abc import Callable

import numpy as np
import pytest

from models.features import Vector
from models.mixture import Mixture

NAMES = ("a", "b", "c", "d")


def sure(label: int, share: float) -> Vector:
    given = np.full(3, (1 - share) / 2)
    given[label] = share
    return given


def play(members_of: Callable[[int, Mixture], Vector], label_of: Callable[[int, Vector], int], candles: int) -> Vector:
    """Play a sequence; the losses of the mixture, then of each member."""
    mixture, losses = Mixture(NAMES), np.zeros(1 + len(NAMES))
    for number in range(candles):
        members = members_of(number, mixture)
        published = mixture.predict(members)
        label = label_of(number, published)
        losses[0] -= np.log(published[label])
        losses[1:] -= np.log(members[:, label])
        mixture.learn(members, label)
    return losses


def one_good_member(number: int, mixture: Mixture) -> Vector:
    return np.stack([sure(number % 3, share) for share in (0.9, 0.3, 0.2, 1e-6)])


def betrayal(number: int, mixture: Mixture) -> Vector:
    """Whichever member is trusted most is confidently wrong from now on, where label 0 comes."""
    wrong = int(mixture.weights.argmax())
    return np.stack([sure(1 if member == wrong else 0, 0.99) for member in range(4)])


def random_members(number: int, mixture: Mixture) -> Vector:
    draw = np.random.default_rng(number)
    return draw.dirichlet([0.3, 0.3, 0.3], size=4) * 0.999 + 0.001 / 3


def changing_best(number: int, mixture: Mixture) -> Vector:
    best = number // 500 % 4
    return np.stack([sure(0, 0.95 if member == best else 0.02) for member in range(4)])


ADVERSARIES: dict[str, tuple[Callable[[int, Mixture], Vector], Callable[[int, Vector], int]]] = {
    "one good member": (one_good_member, lambda number, given: number % 3),
    "the favourite betrays": (betrayal, lambda number, given: 0),
    "the least likely label comes": (random_members, lambda number, given: int(given.argmin())),
    "noise": (random_members, lambda number, given: number * 7919 % 3),
    "the best member changes": (changing_best, lambda number, given: 0),
}


@pytest.mark.parametrize("adversary", ADVERSARIES.values(), ids=ADVERSARIES)
def test_no_sequence_costs_more_than_the_best_member_and_the_stated_bound(
    adversary: tuple[Callable[[int, Mixture], Vector], Callable[[int, Vector], int]],
) -> None:
    losses = play(*adversary, candles=3_000)
    assert losses[0] <= losses[1:].min() + Mixture(NAMES).regret_bound(3_000)


def test_the_bound_is_nearly_met_so_it_says_something() -> None:
    """All members but one are hopeless at once: finding the good one costs ln 4."""
    losses = play(one_good_member, lambda number, given: number % 3, candles=50)
    regret, bound = losses[0] - losses[1:].min(), Mixture(NAMES).regret_bound(50)
    assert 0.4 * bound < regret <= bound


def test_a_member_that_becomes_best_is_found_again_soon() -> None:
    losses = play(changing_best, lambda number, given: 0, candles=2_000)
    switches = 3
    best_sequence = -2_000 * np.log(0.95)
    assert losses[0] <= best_sequence + Mixture(NAMES).regret_bound(2_000) + switches * np.log(4 / 1e-4)
    assert losses[1:].min() > 5 * losses[0]


def test_what_is_published_sums_to_one_and_no_direction_is_impossible() -> None:
    mixture = Mixture(NAMES)
    certain = np.tile([0.0, 1.0, 0.0], (4, 1))
    published = mixture.predict(certain)
    assert published.sum() == pytest.approx(1, abs=1e-12)
    assert published.min() > 0
    mixture.learn(certain, 0)
    assert np.isfinite(mixture.weights).all()
    assert mixture.weights.sum() == pytest.approx(1)


def test_predicting_moves_no_weight() -> None:
    mixture = Mixture(NAMES)
    before = mixture.shares()
    mixture.predict(one_good_member(0, mixture))
    assert mixture.shares() == before
