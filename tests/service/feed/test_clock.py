"""What time it is at the exchange, when any one clock may be wrong."""

from __future__ import annotations

import pytest

from service.feed.clock import judge_time

NEWEST = 1_790_000_000_000
NOW = NEWEST + 400.0
HOUR = 3_600_000.0


@pytest.mark.parametrize(
    ("server", "local", "newest", "now"),
    [
        (NOW, NOW + 7, NEWEST, NOW),
        (NOW, NOW - HOUR, NEWEST, NOW),
        (NOW + HOUR, NOW, NEWEST, NOW),
        (NOW - HOUR, NOW, NEWEST, NOW),
        (NOW + 4_000, NOW, NEWEST, NOW),
        (NOW + HOUR, NOW - HOUR, NEWEST, NEWEST),
        (None, NOW, NEWEST, NOW),
        (None, NOW - HOUR, NEWEST, NEWEST),
        (NOW, NOW + HOUR, None, NOW),
        (None, NOW, None, NOW),
        # a halted market: the newest candle is old, and two clocks agree
        (NOW, NOW + 7, NEWEST - 10 * HOUR, NOW),
    ],
)
def test_the_clock_that_agrees_with_the_candles_is_believed(
    server: float | None, local: float, newest: int | None, now: float
) -> None:
    assert judge_time(server, [local], newest if newest is None else int(newest), 1_000, dense=True) == now


def test_in_a_quiet_market_an_old_candle_does_not_make_the_clock_wrong() -> None:
    assert judge_time(NOW + 20_000, [NOW], NEWEST, 1_000, dense=False) == NOW + 20_000
    assert judge_time(NOW + 20_000, [NOW], NEWEST, 1_000, dense=True) == NOW


def test_a_clock_of_ours_that_was_set_is_not_believed_against_the_one_that_runs_on() -> None:
    assert judge_time(None, [NOW, NOW + HOUR], NEWEST, 1_000, dense=True) == NOW
    assert judge_time(NOW + HOUR, [NOW, NOW - HOUR], NEWEST, 1_000, dense=True) == NOW
    # a halted market has no say
    assert judge_time(None, [NOW, NOW + HOUR], int(NEWEST - HOUR), 1_000, dense=True) == NOW


def test_after_the_machine_slept_the_wall_s_clock_is_believed() -> None:
    assert judge_time(None, [NOW - HOUR, NOW], NEWEST, 1_000, dense=True) == NOW
