import json

import numpy as np
import pytest

from models.label import DOWN, FLAT, UP
from models.panel import FORECASTERS
from models.score import HALF_LIFE, SCORE_WINDOW_MAX, Score, Scored


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
        for window in (None, 100, "fading"):
            assert json.loads(json.dumps(score.card(window), allow_nan=False))["market"] == "m"


def test_a_restored_score_goes_on_exactly() -> None:
    score, again = random_score(700), Score("m")
    again.load_state_dict(score.state_dict())
    for kept in (score, again):
        kept.add(scored(UP, (0.1, 0.1, 0.8), trend=True))
    for window in (None, 300):
        for live in (False, True):
            assert score.card(window, live) == again.card(window, live)


def test_a_fading_score_counts_a_candle_half_after_each_half_life() -> None:
    score = Score("m")
    for number in range(2 * HALF_LIFE):
        score.add(scored(UP if number < HALF_LIFE else DOWN, (0.1, 0.1, 0.8)))
    card = score.card("fading")
    assert (card["window"], card["candles"]) == ("fading", 2 * HALF_LIFE)
    assert card["model"]["accuracy"] == pytest.approx(1 / 3, abs=1e-9)
    assert card["share"]["up"] == pytest.approx(1 / 3, abs=1e-9)
    assert card["model"]["log_loss"] == pytest.approx(-(np.log(0.8) + 2 * np.log(0.1)) / 3, rel=1e-6)
    # Interval and verdict count every candle that fades once: a test that forgets would not stay valid.
    plain = score.card(2 * HALF_LIFE)
    assert (card["accuracy_interval"], card["verdict"]) == (plain["accuracy_interval"], plain["verdict"])


def test_fading_leaves_out_backfill_where_asked_and_has_nulls_without_candles() -> None:
    score = Score("m")
    assert score.card("fading")["model"]["log_loss"] is None
    score.add(scored(DOWN, (0.1, 0.1, 0.8), live=False))
    assert score.card("fading", live=True)["candles"] == 0
    score.add(scored(UP, (0.1, 0.1, 0.8)))
    assert score.card("fading", live=True)["model"]["accuracy"] == 1.0


def test_the_short_figures_are_those_of_the_card() -> None:
    score = random_score(700)
    card, short = score.card(300), score.short(300)
    assert (short["candles"], short["verdict"]) == (300, card["verdict"])
    for name in ("accuracy", "balanced_accuracy", "log_loss", "interval_coverage"):
        assert short[name] == card["model"][name]
    assert short["majority_log_loss"] == card["baselines"]["majority"]["log_loss"]
    assert short["network_log_loss"] == card["members"]["network"]["log_loss"]
