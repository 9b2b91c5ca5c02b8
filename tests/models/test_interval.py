import numpy as np
import pytest

from models.interval import Interval


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0], ids=["too narrow", "right", "too wide"])
def test_coverage_comes_to_four_fifths_whatever_the_predicted_spread(factor: float) -> None:
    draw = np.random.default_rng(0)
    interval, covered = Interval(), 0
    errors = draw.laplace(size=20_000)
    for number, error in enumerate(errors.tolist()):
        inside = -interval.below / factor <= error <= interval.above / factor
        covered += inside and number >= 5_000
        interval.learn(error, 1 / factor)
    assert covered / 15_000 == pytest.approx(0.8, abs=0.01)


def test_each_side_misses_a_tenth_also_when_errors_are_lopsided() -> None:
    draw = np.random.default_rng(1)
    interval, below, above = Interval(), 0, 0
    for number, error in enumerate((draw.exponential(size=20_000) - 0.5).tolist()):
        if number >= 5_000:
            below += error < -interval.below
            above += error > interval.above
        interval.learn(error, 1.0)
    assert below / 15_000 == pytest.approx(0.1, abs=0.01)
    assert above / 15_000 == pytest.approx(0.1, abs=0.01)
