import math

import numpy as np
import pytest

from models.features import Vector
from models.panel import FORECASTERS
from models.score import Score, Scored
from models.verdict import LEVEL, Wealth, accuracy_interval, start_level

STREAMS, CANDLES, BASELINES = 1_000, 1_500, 5


def differences(mean: float, seed: int, size: tuple[int, ...]) -> Vector:
    """Loss differences with heavy tails and changing variance, of the given conditional mean."""
    draw = np.random.default_rng(seed)
    volatility = np.where(np.arange(size[0]) // 200 % 2, 0.6, 0.1).reshape(-1, *(1,) * (len(size) - 1))
    return np.asarray(draw.choice((-1.0, 1.0), size) * draw.exponential(0.5, size) * volatility + mean)


def test_no_skill_is_called_better_in_at_most_a_twentieth_of_streams_at_any_time() -> None:
    """Every stream is looked at after every tenth candle; each stream is a column here, to play them all at once."""
    wealth = Wealth(STREAMS)
    ever = np.zeros(STREAMS, bool)
    worse = np.zeros(STREAMS, bool)
    stream = differences(0.0, 0, (CANDLES, STREAMS))
    for start in range(0, CANDLES, 10):
        wealth.add(stream[start : start + 10])
        ever |= wealth.gains >= -math.log(start_level(0) / 2)
        worse |= wealth.losses >= -math.log(start_level(0) / 2)
    assert ever.mean() <= LEVEL
    assert worse.mean() <= LEVEL


def test_no_skill_against_the_best_of_five_is_called_better_in_at_most_a_twentieth_of_streams() -> None:
    better = 0
    for seed in range(200):
        wealth = Wealth(BASELINES)
        stream = differences(0.3, seed, (600, BASELINES))
        stream[:, 2] -= 0.3  # no better than this one, much better than the others
        found = False
        for start in range(0, 600, 20):
            wealth.add(stream[start : start + 20])
            found |= wealth.verdict() == "better"
        better += found
    assert better <= 10


@pytest.mark.parametrize(("mean", "verdict"), [(0.05, "better"), (-0.05, "worse")])
def test_a_real_difference_is_found_within_some_thousand_candles(mean: float, verdict: str) -> None:
    wealth = Wealth(BASELINES)
    wealth.add(differences(mean, 3, (4_000, BASELINES)))
    assert wealth.verdict() == verdict


def test_without_candles_nothing_is_decided() -> None:
    assert Wealth(BASELINES).verdict() == "undecided"
    assert accuracy_interval(0, 0) is None


def test_taking_candles_one_by_one_or_all_at_once_is_the_same() -> None:
    stream = differences(0.02, 5, (300, BASELINES))
    whole, single = Wealth(BASELINES), Wealth(BASELINES)
    whole.add(stream)
    for row in stream:
        single.add(row)
    np.testing.assert_allclose(whole.gains, single.gains)
    np.testing.assert_allclose(whole.losses, single.losses)


def test_the_bet_on_a_candle_is_chosen_before_it_is_seen() -> None:
    bets = []
    for difference in (0.1, -0.1):
        wealth = Wealth(1)
        wealth.add(np.full((200, 1), 0.001))  # leads to a bet of 0.04, where 0.02 or 0.06 would show a look ahead
        before = wealth.gains.copy()
        wealth.add(np.array([[difference]]))
        bets.append(float(np.expm1(wealth.gains - before)[0]) / difference)
    assert bets == pytest.approx([0.04, 0.04], rel=1e-3)


def test_one_wild_candle_decides_nothing() -> None:
    wealth = Wealth(BASELINES)
    wealth.add(np.full((1, BASELINES), 1e9))
    assert wealth.verdict() == "undecided"


def test_all_windows_together_spend_no_more_than_the_level() -> None:
    assert sum(start_level(start) for start in range(100_000)) <= LEVEL
    assert start_level(0) > start_level(1) > start_level(1_000) > 0


def test_the_accuracy_interval_covers_at_all_times_in_nearly_all_streams() -> None:
    draw = np.random.default_rng(0)
    hits = np.cumsum(draw.random((400, 2_000)) < 0.45, axis=1)
    missed = np.zeros(400, bool)
    for candles in range(1, 2_000, 7):
        _, radius = accuracy_interval(0, candles) or (0, 0)  # around 0, cut off below
        missed |= np.abs(hits[:, candles - 1] / candles - 0.45) > radius
    assert missed.mean() <= LEVEL


def test_the_accuracy_interval_narrows() -> None:
    widths = [high - low for low, high in (accuracy_interval(n / 2, n) or (0, 0) for n in (100, 1_000, 10_000))]
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
    assert widths[2] < 0.06


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_published_model_without_skill_is_called_better_in_at_most_a_twentieth_of_a_thousand_lives() -> None:
    """The whole machinery: candles scored one by one, and looked at over the run and its latest windows all along.

    The model guesses as well as ``markov`` does, so there is nothing to find; the other baselines are far worse.
    """
    better = 0
    for seed in range(1_000):
        draw, score, found = np.random.default_rng(seed), Score("m"), False
        truth = draw.dirichlet([3.0, 4.0, 3.0])
        for number in range(1, 601):
            given = draw.dirichlet([1.0, 1.0, 1.0], size=len(FORECASTERS))
            for equal in (FORECASTERS.index("model"), FORECASTERS.index("markov")):
                given[equal] = draw.dirichlet(30 * truth + 1)
            label = int(draw.choice(3, p=truth))
            score.add(Scored(given, label, live=True, covered=True, error=0.0, persistence=0.0, trend=None))
            if number % 25 == 0:
                found |= any(score.card(window)["verdict"] == "better" for window in (None, 100, 300))
        better += found
    assert better <= 1_000 * LEVEL
