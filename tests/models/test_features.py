from dataclasses import replace
from math import tanh

import numpy as np
import pytest

from models.candle import Candle
from models.features import EVEN_NAMES, ODD_NAMES, feature_rows
from tests.models.streams import TICK, mirrored, stream


def value(rows: list, name: str, at: int = -1) -> float:
    if name in ODD_NAMES:
        return float(rows[at].odd[ODD_NAMES.index(name)])
    return float(rows[at].even[EVEN_NAMES.index(name)])


def candles_at(*closes: float) -> list[Candle]:
    return [Candle("m", 1000 * (i + 1), c, c, c, c, 1.0) for i, c in enumerate(closes)]


@pytest.mark.parametrize("tick", [TICK, None])
def test_changing_candles_from_one_on_leaves_all_features_before_it_bit_identical(tick: float | None) -> None:
    candles = stream(400)
    changed = candles[:300] + [replace(c, high=c.high + 5, close=c.high + 3, volume=9.0) for c in candles[300:]]
    before, after = feature_rows(candles, tick), feature_rows(changed, tick)
    for one, other in zip(before[:300], after[:300], strict=True):
        assert np.array_equal(one.joined, other.joined)
    assert not np.array_equal(before[300].joined, after[300].joined)


@pytest.mark.parametrize("tick", [TICK, None])
def test_mirrored_prices_flip_every_odd_feature_and_leave_every_even_one_exactly(tick: float | None) -> None:
    candles = stream(500)
    for one, other in zip(feature_rows(candles, tick), feature_rows(mirrored(candles), tick), strict=True):
        assert np.array_equal(one.odd, -other.odd)
        assert np.array_equal(one.even, other.even)


def test_every_feature_is_finite_moderate_and_alive() -> None:
    rows = feature_rows(stream(1_000), TICK)
    table = np.array([row.joined for row in rows])
    assert np.isfinite(table).all()
    assert np.abs(table).max() <= 2.0
    dead = [name for name, spread in zip(ODD_NAMES + EVEN_NAMES, table.std(axis=0), strict=True) if spread == 0]
    assert dead == ["one.0"]


def test_a_return_is_measured_in_typical_moves() -> None:
    rows = feature_rows(candles_at(100.0, 101.0, 103.0), 1.0)
    assert rows[-1].scale == 1.5
    assert value(rows, "return.0") == pytest.approx(tanh(2 / 3.0))
    assert value(rows, "return.1") == pytest.approx(tanh(1 / 3.0))


def test_the_position_runs_from_the_low_to_the_high() -> None:
    assert value(feature_rows(candles_at(100.0, 101.0, 103.0), 1.0), "position.3") == 1.0
    assert value(feature_rows(candles_at(100.0, 104.0, 101.0), 1.0), "position.3") == pytest.approx(-0.5)


def test_one_mad_candle_is_forgotten_within_some_minutes() -> None:
    calm = stream(2_000)
    mad = [*calm]
    mad[1_000] = Candle(calm[0].market, calm[1_000].open_time, 1e38, 1e38, 1e38, 1e38, 1e38)
    difference = np.abs(feature_rows(mad, TICK)[-1].joined - feature_rows(calm, TICK)[-1].joined)
    assert np.isfinite(difference).all()
    assert np.quantile(difference, 0.8) < 0.25


def test_failures_37_no_price_that_a_candle_may_have_makes_a_feature_nonfinite() -> None:
    extreme = [1e-300, 1e300, 1e-300, 5e-324, 1.7e308]
    for tick in (0.01, None):
        rows = feature_rows(candles_at(*extreme), tick)
        assert all(np.isfinite(row.joined).all() for row in rows)
