"""The tape of played candles: the same as walking it second by second, whatever the holes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.candle import Candle
from service.simulator.market import Second
from service.simulator.tape import PlayedTape, candle
from service.simulator.trades import agg_trades
from service.simulator.truth import Truth

YEAR_MS = 366 * 86_400_000


def played(places: list[int]) -> list[Candle]:
    """Return a candle at each of the seconds, some of them without volume."""
    return [
        Candle("x:A/B", 7_001 + place * 1_000, 10 + place, 13 + place, 5 + place % 3, 11 + place % 2, place % 3 / 4)
        for place in places
    ]


def walked(tape: PlayedTape, start: int, end: int) -> Second:
    """Put a range together from its seconds, one by one."""
    parts = [tape.second(at) for at in range(start, end, 1_000)]
    return Second(
        start,
        parts[0].open,
        max(part.high for part in parts),
        min(part.low for part in parts),
        parts[-1].close,
        round(sum(part.volume for part in parts), 8),
        sum(part.trades for part in parts),
    )


@given(
    places=st.sets(st.integers(0, 90), min_size=1).map(sorted),
    minute=st.integers(28_000_000, 28_000_100),
    open_ms=st.one_of(st.none(), st.integers(0, 59_999)),
)
@settings(max_examples=200, deadline=None)
def test_a_minute_is_what_its_seconds_make(places: list[int], minute: int, open_ms: int | None) -> None:
    tape, start = PlayedTape(played(places)), minute * 60_000
    until = None if open_ms is None else start + open_ms + 0.5
    end = start + 60_000 if until is None else int(until) + 1
    assert candle(tape, start, 60_000, until) == walked(tape, start, end)


def test_what_was_played_once_is_the_candles_themselves() -> None:
    candles = played([0, 1, 5])
    tape = PlayedTape(candles)
    start = 28_000_000 * 6_000  # six seconds long
    assert [tape.second(start + place * 1_000).open for place in (0, 1, 5, 6)] == [10, 11, 15, 10]
    assert tape.second(start + 4_000) == Second(start + 4_000, 12, 12, 12, 12, 0.0, 0)


@pytest.mark.parametrize("last_ms", [10**10, 2**53 - 1_000])
def test_a_huge_hole_costs_nothing_for_each_missing_second(last_ms: int) -> None:
    edge = [Candle("x:A/B", at, 3.0, 4.0, 2.0, 3.5, 1.0) for at in (1_000, last_ms // 1_000 * 1_000)]
    truth, began = Truth({"AB": "A/B"}, 0, edge), time.process_time()
    end = 1_700_000_000_000
    days = list(truth.between("AB", 86_400_000, end - YEAR_MS, end))
    seconds = list(truth.between("AB", 1_000, end - 1_000_000, end))
    agg_trades(truth, "AB", None, 1_000, end)
    assert len(days) in (366, 367)
    assert len(seconds) == 1_000
    assert {second.close for second in seconds} == {3.5}
    assert time.process_time() - began < 5, "ten million seconds, walked one by one for each, take hours"
