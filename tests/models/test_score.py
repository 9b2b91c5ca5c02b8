import json

import numpy as np
import pytest

from models.label import DOWN, FLAT, UP
from models.panel import FORECASTERS
from models.score import SCORE_WINDOW_MAX, Score, Scored


def scored(label: int, published: tuple[float, float, float], live: bool = True, **changes: object) -> Scored:
    """A candle on which every other forecaster was undecided, leaning to flat."""
    given = np.tile([0.3, 0.4, 0.3], (len(FORECASTERS), 1))
    given[0] = published
    rest: dict[str, object] = {"covered": True, "error": 1.0, "persistence": 2.0, "trend": None}
    return Scored(given, label, live, **(rest | changes))  # type: ignore[arg-type]


def random_score(count: int, capacity: int = SCORE_WINDOW_MAX) -> Score:
    draw, score = np.random.default_rng(0), Score("m", capacity)
    for number in range(count):
        given = draw.dirichlet([2.0, 3.0, 2.0], size=len(FORECASTERS))
        trend = bool(draw.integers(2)) if number > 60 else None
        score.add(Scored(given, int(draw.integers(3)), number >= count // 2, draw.random() < 0.8, 1.0, 2.0, trend))
    return score


def test_the_measures_are_those_worked_out_by_hand() -> None:
    score = Score("m")
    score.add(scored(UP, (0.1, 0.2, 0.7)))
    score.add(scored(FLAT, (0.1, 0.2, 0.7), covered=False, error=3.0, trend=True))
    score.add(scored(UP, (0.6, 0.2, 0.2), trend=False))
    score.add(scored(DOWN, (0.6, 0.2, 0.2)))
    card = score.card()
    model = card["model"]
    assert card["candles"] == 4
    assert card["moved"] == 0.75
    assert card["share"] == {"down": 0.25, "flat": 0.25, "up": 0.5}
    assert model["accuracy"] == 0.5
    assert model["balanced_accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert model["log_loss"] == pytest.approx(-np.log([0.7, 0.2, 0.2, 0.6]).mean(), rel=1e-6)
    brier = (0.01 + 0.04 + 0.09) + (0.01 + 0.64 + 0.49) + (0.36 + 0.04 + 0.64) + (0.16 + 0.04 + 0.04)
    assert model["brier"] == pytest.approx(brier / 4, rel=1e-6)
    # Confidence .7 was right in one of two, .6 in one of two: off by .2 on half the candles, by .1 on the others.
    assert model["ece"] == pytest.approx(0.15, rel=1e-6)
    assert model["interval_coverage"] == 0.75
    assert model["close_mae"] == 1.5
    assert model["trend_accuracy"] == 0.5
    assert model["kappa_t"] == pytest.approx((0.5 - 0.25) / 0.75)
    assert card["baselines"]["majority"]["accuracy"] == 0.25
    assert card["baselines"]["persistence"]["close_mae"] == 2.0
    assert card["skill"]["linear"] == pytest.approx(1 - model["log_loss"] / card["baselines"]["linear"]["log_loss"])


def test_an_empty_score_has_nulls_and_no_verdict() -> None:
    card = Score("m").card()
    assert card["candles"] == 0
    assert card["model"]["log_loss"] is None
    assert card["accuracy_interval"] is None
    assert card["verdict"] == "undecided"


def test_a_window_over_everything_equals_the_totals() -> None:
    score = random_score(500)
    whole, window = score.card(), score.card(500)
    assert whole["model"] == pytest.approx(window["model"])
    for group in ("members", "baselines"):
        for name, measures in whole[group].items():
            assert measures == pytest.approx(window[group][name])
    assert whole["verdict"] == window["verdict"]


def test_a_window_counts_only_its_last_candles() -> None:
    score = Score("m")
    for _ in range(10):
        score.add(scored(UP, (0.1, 0.1, 0.8)))
    for _ in range(5):
        score.add(scored(DOWN, (0.1, 0.1, 0.8)))
    assert score.card(5)["model"]["accuracy"] == 0.0
    assert score.card(10)["model"]["accuracy"] == 0.5
    assert score.card(14_000)["candles"] == 15


def test_live_leaves_out_what_came_by_backfill() -> None:
    score = Score("m")
    for _ in range(8):
        score.add(scored(DOWN, (0.1, 0.1, 0.8), live=False))
    for _ in range(4):
        score.add(scored(UP, (0.1, 0.1, 0.8)))
    for window in (None, 10):
        assert score.card(window, live=True)["candles"] == 4
        assert score.card(window, live=True)["model"]["accuracy"] == 1.0
    assert score.card()["candles"] == 12


@pytest.mark.parametrize("window", [0, -1, SCORE_WINDOW_MAX + 1])
def test_a_window_out_of_range_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        Score("m").card(window)


def test_windows_go_on_over_the_end_of_the_ring() -> None:
    short, long = random_score(130, capacity=100), random_score(130)
    assert np.array_equal(short.rows(), long.rows()[-100:], equal_nan=True)
    assert short.card(100) == long.card(100)
    assert short.card() == long.card()


def test_a_card_is_strict_json() -> None:
    for score in (Score("m"), random_score(3), random_score(200)):
        for window in (None, 100):
            assert json.loads(json.dumps(score.card(window), allow_nan=False))["market"] == "m"


def test_a_restored_score_goes_on_exactly() -> None:
    score, again = random_score(700), Score("m")
    again.load_state_dict(score.state_dict())
    for kept in (score, again):
        kept.add(scored(UP, (0.1, 0.1, 0.8), trend=True))
    for window in (None, 300):
        for live in (False, True):
            assert score.card(window, live) == again.card(window, live)
