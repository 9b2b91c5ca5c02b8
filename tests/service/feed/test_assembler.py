"""Rows in any order and state go in; the market's closed candles come out, in order, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.candle import Candle
from service.feed.assembler import Assembler, AssemblerRules
from service.feed.rows import Grid
from service.ports import Correction, FeedItem, Gap

SECOND = 1_000
START = 1_790_000_000_000
NOW = START + 3_600_000
MARKET = "binance:ETH/USDT"


def at(number: int) -> int:
    return START + number * SECOND


def row(number: int, close: float = 100.0) -> list[Any]:
    close = close + number % 7
    return [at(number), 100.0, max(100.0, close) + 1, min(100.0, close) - 1, close, 1.0 + number]


def candle(number: int, source: Any = "live") -> Candle:
    return Candle(MARKET, *row(number), source)


def make_assembler(resuming: bool = False, **rules: Any) -> Assembler:
    return Assembler(MARKET, Grid(SECOND), START, AssemblerRules(**rules), resuming=resuming)


def drain(assembler: Assembler) -> list[FeedItem]:
    items: list[FeedItem] = []
    while (item := assembler.take()) is not None:
        items.append(item)
    return items


def times(items: Sequence[FeedItem]) -> list[int]:
    return [(item.open_time - START) // SECOND for item in items if isinstance(item, Candle)]


# --- from the socket --------------------------------------------------------------------------------------------------


def test_failures_23_a_candle_updated_three_times_comes_out_once_with_its_final_values() -> None:
    assembler = make_assembler()
    assembler.offer(row(0, 50), False, NOW)
    assembler.offer(row(0, 60), False, NOW)
    assembler.offer(row(0), True, NOW)
    assembler.offer(row(1, 50), False, NOW)
    assert drain(assembler) == [candle(0)]


def test_failures_23_without_a_closed_flag_a_candle_is_over_when_the_next_one_begins() -> None:
    assembler = make_assembler(flagged=False)
    for values in (row(0, 50), row(0, 60), row(0)):
        assembler.offer(values, False, NOW)
    assert drain(assembler) == []
    assembler.offer(row(1), False, NOW)
    assert drain(assembler) == [candle(0)]


def test_a_candle_half_seen_when_the_socket_broke_is_not_taken_for_closed() -> None:
    assembler = make_assembler(flagged=False)
    assembler.offer(row(0, 50), False, NOW)
    assembler.disconnected()
    assembler.offer(row(3), False, NOW)
    assert drain(assembler) == []
    assembler.answer([row(n) for n in range(4)], START, NOW)
    assert times(drain(assembler)) == [0, 1, 2]


def test_later_candles_wait_for_a_missing_one_and_follow_it_in_order() -> None:
    assembler = make_assembler()
    for number in (0, 2, 3):
        assembler.offer(row(number), True, NOW)
    assert times(drain(assembler)) == [0]
    assert assembler.missing
    assembler.offer(row(1), True, NOW)
    assert times(drain(assembler)) == [1, 2, 3]
    assert not assembler.missing


def test_rows_of_the_caller_may_change_afterwards() -> None:
    assembler = make_assembler()
    values = row(0)
    assembler.offer(values, True, NOW)
    values[4] = 1.0
    assert drain(assembler) == [candle(0)]


def test_failures_31_repeated_and_unordered_candles_change_nothing() -> None:
    assembler = make_assembler()
    for number in (0, 1, 0, 1, 2, 0, 2, 1):
        assembler.offer(row(number), True, NOW)
    assert times(drain(assembler)) == [0, 1, 2]
    assert assembler.counts.repeated == 5
    assert not assembler.suspects


BAD_ROWS = [
    ("fields", None),
    ("fields", "[1,2,3]"),
    ("fields", [at(0), 1.0, 1.0, 1.0, 1.0]),
    ("fields", {"open_time": at(0)}),
    ("time", [None, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("time", [float(at(0)), 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("time", [str(at(0)), 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("time", [True, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("time", [0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("grid", [at(0) + 1, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("grid", [at(0) // 1_000 + 1, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("future", [at(86_400), 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("nonfinite", [at(0), 1.0, 1.0, 1.0, float("nan"), 1.0]),
    ("nonfinite", [at(0), "NaN", "1", "1", "1", "1"]),
    ("nonfinite", [at(0), 1.0, float("inf"), 1.0, 1.0, 1.0]),
    ("nonfinite", [at(0), 1.0, 1.0, 1.0, 1.0, "1e999"]),
    ("price", [at(0), 0.0, 1.0, 0.0, 1.0, 1.0]),
    ("price", [at(0), -1.0, 1.0, -1.0, 1.0, 1.0]),
    ("range", [at(0), 1.0, 1.0, 2.0, 1.0, 1.0]),
    ("range", [at(0), 1.0, 2.0, 1.0, 3.0, 1.0]),
    ("volume", [at(0), 1.0, 1.0, 1.0, 1.0, -1.0]),
    ("missing", [at(0), 1.0, 1.0, 1.0, None, 1.0]),
    ("missing", [at(0), 1.0, 1.0, 1.0, "", 1.0]),
    ("missing", [at(0), 1.0, 1.0, 1.0, "abc", 1.0]),
    ("missing", [at(0), 1.0, 1.0, 1.0, [1.0], 1.0]),
    ("missing", [at(0), 1.0, True, 1.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("reason", "bad"), BAD_ROWS)
def test_failures_37_a_row_that_is_no_candle_is_refused_and_counted_by_reason(reason: str, bad: object) -> None:
    assembler = make_assembler()
    assembler.offer(bad, True, NOW)
    assembler.answer([bad], START, NOW)
    assert drain(assembler) == []
    assert assembler.counts.rejected == {reason: 2}
    assembler.offer(row(0), True, NOW)
    assert drain(assembler) == [candle(0)]


# --- from REST --------------------------------------------------------------------------------------------------------


def test_the_newest_row_of_an_answer_is_still_open_and_not_handed_out() -> None:
    assembler = make_assembler()
    assembler.answer([row(0), row(1), row(2, 50)], START, NOW)
    assert times(drain(assembler)) == [0, 1]


def test_an_answer_made_long_ago_does_not_close_its_newest_row_though_the_clock_says_it_is_over() -> None:
    assembler = make_assembler()
    assembler.answer([row(0), row(1, 50)], START, at(20))
    assert times(drain(assembler)) == [0]


def test_where_quiet_intervals_have_no_candle_the_clock_closes_the_newest_row() -> None:
    assembler = make_assembler(dense=False, rest_grace_ms=3_000)
    assembler.answer([row(0), row(1)], START, at(2) + 2_999)
    assert times(drain(assembler)) == [0]
    assembler.answer([row(0), row(1)], START, at(2) + 3_000)
    assert times(drain(assembler)) == [1]


def test_candles_fetched_long_after_their_close_are_marked_backfill() -> None:
    assembler = make_assembler(backfill_after_ms=10_000)
    assembler.answer([row(n) for n in range(5)], START, at(12))
    assert [item.source for item in drain(assembler) if isinstance(item, Candle)] == [
        "backfill", "live", "live", "live",
    ]  # fmt: skip
    assert assembler.counts.backfilled == 1


def test_rest_wins_over_a_final_frame_that_is_still_waiting() -> None:
    assembler = make_assembler()
    assembler.offer(row(1, 50), True, NOW)
    assembler.answer([row(0), row(1), row(2)], START, NOW)
    assert [item.close for item in drain(assembler) if isinstance(item, Candle)] == [row(0)[4], row(1)[4]]


def test_a_candle_told_differently_after_it_was_handed_out_comes_as_one_correction() -> None:
    assembler = make_assembler()
    assembler.offer(row(0, 50), True, NOW)
    assert times(drain(assembler)) == [0]
    answer = [row(0), row(1, 50)]
    assembler.answer(answer, START, NOW)
    assembler.answer(answer, START, NOW)
    assert drain(assembler) == [Correction(candle(0))]
    assert assembler.counts.corrections == 1


def test_a_final_frame_that_contradicts_what_was_handed_out_asks_for_rest_and_changes_nothing_itself() -> None:
    assembler = make_assembler()
    assembler.offer(row(0), True, NOW)
    assembler.offer(row(0, 50), True, NOW)
    assert drain(assembler) == [candle(0)]
    assert assembler.suspects == {START}
    assembler.answer([row(0), row(1)], START, NOW)
    assert drain(assembler) == []
    assert not assembler.suspects


def test_rows_doubled_and_unsorted_are_put_in_order() -> None:
    assembler = make_assembler()
    rows = [row(n) for n in (3, 2, 1, 0, 0, 1, 2, 3)]
    assembler.answer(rows, START, NOW)
    assert times(drain(assembler)) == [0, 1, 2]


@pytest.mark.parametrize("rows", [None, "<html>", b"x", 7, {}, {"code": -1000}])
def test_an_answer_that_is_no_list_of_rows_is_refused(rows: object) -> None:
    assembler = make_assembler()
    answer = assembler.answer(rows, START, NOW)
    assert answer.valid == 0
    assert answer.newest is None
    assert drain(assembler) == []


# --- holes ------------------------------------------------------------------------------------------------------------


def test_what_rest_does_not_have_after_some_tries_is_the_exchange_s_own_gap() -> None:
    assembler = make_assembler(gap_tries=3)
    assembler.offer(row(0), True, NOW)
    rows = [row(0), row(4), row(5)]
    assembler.answer(rows, START, NOW)
    assembler.answer(rows, START, NOW)
    assert drain(assembler) == [candle(0)]
    assembler.answer(rows, START, NOW)
    assert drain(assembler)[:1] == [Gap(MARKET, at(1), at(4), "the exchange has no candles here")]
    assert assembler.next_open == at(5)
    assert assembler.counts.gaps == 1


def test_answers_that_end_before_the_hole_or_hold_bad_rows_prove_nothing() -> None:
    assembler = make_assembler(gap_tries=2)
    for number in (0, 3):
        assembler.offer(row(number), True, NOW)
    for _ in range(5):
        assembler.answer([], START, NOW)
        assembler.answer([row(0)], START, NOW)
        assembler.answer([row(0), [at(1), None, 1, 1, 1, 1], row(3), row(4)], START, NOW)
    assert times(drain(assembler)) == [0]
    assert assembler.counts.gaps == 0


def test_a_row_that_never_makes_sense_does_not_hold_up_the_candles_after_it_for_ever() -> None:
    assembler = make_assembler(gap_tries=2)
    assembler.offer(row(0), True, NOW)
    answers = 0
    while assembler.counts.gaps == 0 and answers < 100:
        assembler.answer([row(0), [at(1), 0.0, 0.0, 0.0, 0.0, 0.0], row(2), row(3)], START, NOW)
        answers += 1
    assert [type(item) for item in drain(assembler)] == [Candle, Gap, Candle]
    # Five times as many as where all rows make sense: it may be put right.
    assert answers == 10


def test_a_candle_that_turns_up_after_its_gap_was_declared_is_stored_as_a_correction() -> None:
    assembler = make_assembler(gap_tries=1)
    assembler.answer([row(0), row(2), row(3)], START, NOW)
    assert [type(item) for item in drain(assembler)] == [Candle, Gap, Candle]
    assembler.answer([row(0), row(1), row(2), row(3)], START, NOW)
    assert drain(assembler) == [Correction(candle(1, "backfill"))]


def test_before_the_first_candle_there_is_no_gap_unless_the_consumer_resumes() -> None:
    rows = [row(2), row(3)]
    fresh, resumed = make_assembler(gap_tries=1), make_assembler(gap_tries=1, resuming=True)
    fresh.answer(rows, START, NOW)
    resumed.answer(rows, START, NOW)
    assert [type(item) for item in drain(fresh)] == [Candle]
    assert [type(item) for item in drain(resumed)] == [Gap, Candle]


def test_where_quiet_intervals_have_no_candle_up_to_sixty_are_filled_flat() -> None:
    assembler = make_assembler(dense=False)
    assembler.answer([row(0), row(61), row(62)], START, at(66))
    items = drain(assembler)
    assert times(items) == list(range(63))
    filled = [item for item in items if isinstance(item, Candle) and item.source == "filled"]
    assert len(filled) == assembler.counts.filled == 60
    assert all((c.open, c.high, c.low, c.close, c.volume) == (100.0, 100.0, 100.0, 100.0, 0.0) for c in filled)


def test_where_quiet_intervals_have_no_candle_they_are_filled_while_the_market_is_quiet_for_a_minute() -> None:
    assembler = make_assembler(dense=False)
    for number in range(4, 100):
        assembler.answer([row(0)], START, at(number))
    assert times(drain(assembler)) == list(range(61))
    assert (assembler.counts.filled, assembler.counts.gaps) == (60, 0)
    assembler.answer([row(0), row(99), row(100)], START, at(104))
    assert [type(item) for item in drain(assembler)] == [Candle] * 40


def test_a_quiet_time_longer_than_sixty_candles_is_a_gap() -> None:
    assembler = make_assembler(dense=False)
    assembler.answer([row(0), row(62), row(63)], START, at(67))
    assert [type(item) for item in drain(assembler)] == [Candle, Gap, Candle, Candle]


def test_giving_up_on_a_hole_goes_on_with_what_is_waiting() -> None:
    assembler = make_assembler()
    for number in (0, 3, 4):
        assembler.offer(row(number), True, NOW)
    assembler.give_up("REST could not be asked")
    assert drain(assembler) == [candle(0), Gap(MARKET, at(1), at(3), "REST could not be asked"), candle(3), candle(4)]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_consumer_that_does_not_take_costs_bounded_memory_and_loses_nothing() -> None:
    assembler = make_assembler(pending_candles=10, out_items=5)
    for number in range(100):
        assembler.offer(row(number), True, NOW)
    assert assembler.congested
    assert assembler.waiting <= 10
    seen = drain(assembler)
    assembler.answer([row(n) for n in range(15, 102)], at(15), NOW)
    while more := drain(assembler):
        seen += more
        assembler.answer([row(n) for n in range(15, 102)], at(15), NOW)
    assert times(seen) == list(range(101))


# --- any interleaving -------------------------------------------------------------------------------------------------

LENGTH = 24
numbers = st.integers(0, LENGTH - 1)
operations = st.one_of(
    st.tuples(st.sampled_from(["partial", "final", "wrong_final"]), numbers),
    st.tuples(st.just("bad"), st.sampled_from([bad for _, bad in BAD_ROWS])),
    st.tuples(st.just("rest"), st.tuples(numbers, st.integers(0, LENGTH), st.booleans(), st.booleans())),
    st.tuples(st.sampled_from(["disconnected", "take"]), st.none()),
)


def test_a_candle_stored_before_a_restart_is_corrected_and_nothing_else_of_then_comes_again() -> None:
    recent = [candle(n) for n in (1, 2, 3, 4, 5)]
    assembler = Assembler(MARKET, Grid(SECOND), at(4), AssemblerRules(), resuming=True, recent=recent)
    assert assembler.oldest == at(1)
    assembler.answer([row(0), row(1), row(2, 50), *(row(n) for n in range(3, 7))], at(0), NOW)
    first, *others = drain(assembler)
    assert first == Correction(Candle(MARKET, *row(2, 50)))
    assert others == [candle(n, "backfill") for n in (4, 5)]


def test_quiet_intervals_right_after_the_last_stored_candle_are_filled_from_it() -> None:
    assembler = Assembler(
        MARKET,
        Grid(SECOND),
        START,
        AssemblerRules(dense=False),
        resuming=True,
        recent=[replace(candle(0), open_time=at(-1))],
    )
    assembler.answer([row(2), row(3)], at(-1), at(7))
    assert [item.source for item in drain(assembler) if isinstance(item, Candle)] == [
        "filled",
        "filled",
        "live",
        "live",
    ]


@settings(max_examples=200, deadline=None)
@given(
    script=st.lists(operations, max_size=60),
    erased=st.sets(numbers, max_size=6),
    flagged=st.booleans(),
    small=st.booleans(),
)
def test_any_interleaving_of_rows_ends_in_the_exchange_s_truth(
    script: list[tuple[str, Any]], erased: set[int], flagged: bool, small: bool
) -> None:
    bounds = {"pending_candles": 4, "out_items": 3} if small else {}
    assembler = make_assembler(flagged=flagged, gap_tries=3, **bounds)
    there = [n for n in range(LENGTH) if n not in erased]
    items: list[FeedItem] = []
    for name, value in script:
        play(assembler, name, value, there, items)
    rounds = 0
    while assembler.next_open < at(LENGTH) or rounds < 2:
        rounds += 1
        assert rounds < 200
        assembler.answer([row(n) for n in [*there, LENGTH]], START, NOW)
        items += drain(assembler)
    check(items, there)


def play(assembler: Assembler, name: str, value: Any, there: list[int], items: list[FeedItem]) -> None:
    match name:
        case "partial" if value in there:
            assembler.offer(row(value, 50), False, NOW)
        case "final" if value in there:
            assembler.offer(row(value), True, NOW)
        case "wrong_final" if value in there:
            assembler.offer(row(value, 70), True, NOW)
        case "bad":
            assembler.offer(value, True, NOW)
        case "rest":
            start, end, doubled, spoilt = value
            rows = [row(n) for n in there if start <= n < end]
            rows += [row(end, 50)] if end in there else []
            rows = [*reversed(rows), *rows] if doubled else rows
            rows = [*rows, [None] * 6] if spoilt else rows
            assembler.answer(rows, at(start), NOW)
        case "disconnected":
            assembler.disconnected()
        case "take":
            items.extend(drain(assembler))


def check(items: list[FeedItem], there: list[int]) -> None:
    """Stored candles equal the truth; candles and gaps follow each other without hole or overlap."""
    stored: dict[int, Candle] = {}
    due: int | None = None
    for item in items:
        if isinstance(item, Correction):
            stored[item.candle.open_time] = item.candle
        elif isinstance(item, Gap):
            assert item.start == due
            due = item.end
        elif isinstance(item, Candle):
            assert due in (None, item.open_time)
            assert item.open_time not in stored
            stored[item.open_time] = item
            due = item.open_time + SECOND
    assert sorted(stored) == [at(n) for n in there]
    for number in there:
        mine = stored[at(number)]
        assert (mine.open, mine.high, mine.low, mine.close, mine.volume) == tuple(row(number)[1:])
