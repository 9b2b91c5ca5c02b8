import pytest

from models.label import direction


@pytest.mark.parametrize(
    ("after", "expected"), [(100.01, "up"), (99.99, "down"), (100.0, "flat"), (100.004, "flat"), (99.996, "flat")]
)
def test_a_move_under_half_a_tick_is_flat(after: float, expected: str) -> None:
    assert direction(100.0, after, 0.01) == expected


def test_the_rounding_of_binary_prices_makes_no_direction() -> None:
    assert direction(0.1 + 0.2, 0.3, 0.1) == "flat"


def test_without_a_tick_only_equal_closes_are_flat() -> None:
    assert direction(100.0, 100.0, None) == "flat"
    assert direction(100.0, 100.0000001, None) == "up"
