import pytest

from models.candle import Candle
from models.grid import fill_gaps


def candle(second: int, close: float = 100.0) -> Candle:
    return Candle("m", (1_000_000 + second) * 1000, close, close, close, close, 1.0)


def test_missing_seconds_are_filled_flat_at_the_last_close() -> None:
    filled = list(fill_gaps([candle(0, 100.0), candle(3, 105.0)], 1000))
    assert [(c.open_time // 1000 - 1_000_000, c.close, c.volume, c.source) for c in filled] == [
        (0, 100.0, 1.0, "live"),
        (1, 100.0, 0.0, "filled"),
        (2, 100.0, 0.0, "filled"),
        (3, 105.0, 1.0, "live"),
    ]


def test_a_hole_of_sixty_missing_seconds_is_filled_and_one_more_is_left() -> None:
    assert len(list(fill_gaps([candle(0), candle(61)], 1000))) == 62
    assert len(list(fill_gaps([candle(0), candle(62)], 1000))) == 2


@pytest.mark.parametrize("second", [0, -5])
def test_candles_that_do_not_rise_are_refused(second: int) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        list(fill_gaps([candle(0), candle(second)], 1000))


def test_a_candle_off_the_grid_is_refused() -> None:
    off = Candle("m", 1_000_001_500, 1.0, 1.0, 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="grid of 1000 ms"):
        list(fill_gaps([candle(0), off], 1000))
