import numpy as np
import pytest

from models.window import Window
from tests.models.streams import START, TICK, stream


def test_a_gap_empties_the_window() -> None:
    window, fresh = Window(1000, TICK), Window(1000, TICK)
    for candle in stream(50):
        window.add(candle)
    after = stream(3, seed=1, start=START + 60_000)
    for candle in after:
        one, other = window.add(candle), fresh.add(candle)
    assert window.age == 3
    assert np.array_equal(one.joined, other.joined)


def test_a_candle_that_is_not_later_is_refused_and_changes_nothing() -> None:
    window = Window(1000, TICK)
    candles = stream(5)
    for candle in candles:
        window.add(candle)
    with pytest.raises(ValueError, match="not later"):
        window.add(candles[-1])
    assert window.age == 5


def test_a_restored_window_goes_on_exactly() -> None:
    candles = stream(200)
    window = Window(1000, TICK)
    for candle in candles[:120]:
        window.add(candle)
    again = Window(1000, TICK)
    again.load_state_dict(window.state_dict())
    for candle in candles[120:]:
        assert np.array_equal(window.add(candle).joined, again.add(candle).joined)
