"""The feed against the simulated exchange, through the real ccxt client, in accelerated time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.candle import Candle
from service.feed.exchange import ExchangeFeed
from service.feed.pace import Manners
from service.feed.timing import FeedTiming
from service.ports import ConfigurationError, Correction, FeedItem, FeedUnreachable, Gap, Notice
from service.simulator.faults import KINDS, Fault, random_plan
from service.simulator.server import SimulatedExchange
from service.simulator.session import Session
from tests.service.feed.rehearsal import Rehearsal, make_feed, rehearse, scripted_plan
from tests.support.eventually import eventually

SPEED = 20.0
ROOT = Path(__file__).parents[3]


def simulated(**options: Any) -> SimulatedExchange:
    return SimulatedExchange(**{"speed": SPEED, **options})


async def collect(feed: ExchangeFeed, count: int, after: int | None = None, backfill: int = 5) -> list[FeedItem]:
    """Take items until ``count`` candles came."""
    items: list[FeedItem] = []
    async with contextlib.aclosing(feed.stream(after, backfill)) as stream:
        async for item in stream:
            items.append(item)
            if sum(isinstance(item, Candle) for item in items) == count:
                break
    return items


def candles_of(items: list[FeedItem]) -> list[Candle]:
    return [item for item in items if isinstance(item, Candle)]


async def rehearsed(*faults: Fault, seconds: int = 12, **options: Any) -> Rehearsal:
    """Rehearse the faults and expect the truth at the end, and to be back soon after the last of them."""
    result, differences = await rehearse(faults, **{"seconds": seconds, "speed": SPEED, **options})
    assert differences == []
    assert result.recovered_ms is not None
    # In accelerated time a second of a busy machine counts as many; real time is judged by the runs in rehearsal.py.
    assert result.recovered_ms < 15_000 + 3_000 * options.get("speed", SPEED)
    return result


async def each_rehearsed(*plans: Sequence[Fault], **options: Any) -> list[Rehearsal]:
    """Rehearse each plan by itself, all at the same time: they mostly wait."""
    return list(await asyncio.gather(*(rehearsed(*plan, **options) for plan in plans)))


# --- the happy path ---------------------------------------------------------------------------------------------------


async def test_backfill_and_live_candles_follow_each_other_without_a_hole_and_equal_the_exchange_s_truth() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        assert (feed.market, feed.interval_ms, feed.tick) == ("binance:ETH/USDT", 1_000, 0.01)
        assert feed.state().status == "starting"
        items: list[FeedItem] = []
        async with contextlib.aclosing(feed.stream(None, 50)) as stream:
            async for item in stream:
                items.append(item)
                state = feed.state()
                if len(items) >= 80 and state.status == "live":
                    break
        candles = candles_of(items)
        for one, other in itertools.pairwise(candles):
            assert other.open_time == one.open_time + 1_000
        for candle in candles:
            truth = exchange.truth.candle("ETHUSDT", candle.open_time, 1_000)
            assert truth is not None
            assert (candle.open, candle.high, candle.low, candle.close, candle.volume) == (
                truth.open,
                truth.high,
                truth.low,
                truth.close,
                truth.volume,
            )
        assert (candles[0].source, candles[-1].source) == ("backfill", "live")
        assert (state.status, state.backfill_total, state.reconnects) == ("live", 50, 0)
        assert 35 <= state.backfilled <= 50
        assert state.last_open_time == candles[-1].open_time
    assert feed.state().status == "closed"


async def test_a_long_backfill_takes_several_answers_and_misses_nothing() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        candles = candles_of(await collect(feed, 2_520, backfill=2_500))
        assert [c.open_time for c in candles] == [candles[0].open_time + 1_000 * n for n in range(2_520)]


async def test_the_market_s_name_can_be_given() -> None:
    async with simulated() as exchange:
        feed = ExchangeFeed(
            exchange="binance",
            symbol="ETH/USDT",
            timeframe="1s",
            ccxt_config=exchange.ccxt_config(),
            simulated=True,
            market="simulated:ETH/USDT",
            timing=FeedTiming.accelerated(SPEED),
        )
        async with feed:
            assert candles_of(await collect(feed, 1))[0].market == "simulated:ETH/USDT"
            assert feed.state().simulated


async def test_an_exchange_without_a_closed_flag_is_followed_by_the_next_candle_s_arrival() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        feed._client.flagged = False
        exchange.book.add(Fault("drop", int(exchange.since_start()) + 10_600))
        stored = Rehearsal()
        async with contextlib.aclosing(feed.stream(None, 10)) as stream:
            async for item in stream:
                stored.take(item)
                if len(stored.order) == 50:
                    break
        assert stored.compare(exchange) == []
        assert stored.gaps == []


async def test_an_exchange_without_a_socket_is_followed_by_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        monkeypatch.setitem(feed._client.api.has, "watchOHLCV", False)
        candles = candles_of(await collect(feed, 50, backfill=10))
        assert [c.open_time for c in candles] == [candles[0].open_time + 1_000 * n for n in range(50)]
        assert exchange.sockets.sessions == set()


async def test_candles_known_from_a_clock_far_ahead_are_said_to_be_so() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        after = int(exchange.clock.now_ms()) // 1_000 * 1_000 + 600_000
        async with contextlib.aclosing(feed.stream(after, 10)) as stream:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.5)
            assert feed.state().status == "stale"
            assert "ahead of the exchange's clock" in feed.state().detail


async def test_a_minute_is_a_timeframe_like_any_other() -> None:
    async with simulated(speed=400.0) as exchange:
        feed = ExchangeFeed(
            exchange="binance",
            symbol="ETH/USDT",
            timeframe="1m",
            ccxt_config=exchange.ccxt_config(),
            timing=FeedTiming.accelerated(400.0),
        )
        async with feed:
            candles = candles_of(await collect(feed, 14, backfill=8))
        for one, other in itertools.pairwise(candles):
            assert other.open_time == one.open_time + 60_000
        for candle in candles:
            truth = exchange.truth.candle("ETHUSDT", candle.open_time, 60_000)
            assert truth is not None
            assert (candle.close, candle.volume) == (truth.close, truth.volume)


# --- entering ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"symbol": "ETH/USD"}, "binance has no symbol 'ETH/USD'; did you mean ETH/USDT?"),
        ({"timeframe": "2s"}, "binance has no timeframe '2s'; it has 1s, 1m, 3m,"),
        ({"timeframe": "1M"}, "timeframe '1M' has no fixed length"),
        ({"timeframe": "second"}, "timeframe 'second' has no fixed length"),
        ({"exchange": "binanze"}, "unknown exchange 'binanze'"),
    ],
)
async def test_what_cannot_work_is_said_in_one_line(options: dict[str, str], line: str) -> None:
    async with simulated() as exchange:
        arguments = {"exchange": "binance", "symbol": "ETH/USDT", "timeframe": "1s", **options}
        with pytest.raises(ConfigurationError) as caught:
            async with ExchangeFeed(**arguments, ccxt_config=exchange.ccxt_config()):
                pytest.fail("entered")
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_an_exchange_that_is_not_there_is_unreachable_within_eight_seconds() -> None:
    async with simulated() as exchange:
        config = exchange.ccxt_config()
    started = time.monotonic()
    with pytest.raises(FeedUnreachable, match="binance: ExchangeNotAvailable"):
        async with ExchangeFeed(exchange="binance", symbol="ETH/USDT", timeframe="1s", ccxt_config=config):
            pytest.fail("entered")
    assert time.monotonic() - started < 8


async def test_an_exchange_that_does_not_answer_is_unreachable_when_the_patience_ends() -> None:
    async with simulated(faults=[Fault("rest_stall", 0, 10**9)]) as exchange:
        timing = FeedTiming(connect_seconds=0.5, request_seconds=5)
        with pytest.raises(FeedUnreachable, match=r"did not answer within 0\.5 s"):
            async with make_feed(exchange, timing):
                pytest.fail("entered")


async def test_an_exchange_that_refuses_the_location_is_asked_once_and_its_refusal_said_plainly() -> None:
    async with simulated(faults=[Fault("rest_status", 0, 10**9, {"status": 451})]) as exchange:
        with pytest.raises(FeedUnreachable, match=r"binance: the exchange refuses this location \(HTTP 451\)"):
            async with make_feed(exchange):
                pytest.fail("entered")
        assert exchange.requests == 1


async def test_while_the_exchange_limits_us_it_is_asked_no_sooner_than_it_says() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        begun = int(exchange.since_start())
        exchange.book.add(Fault("rest_status", begun + 4_000, 60_000, {"status": 429, "retry_after": 20}))
        exchange.book.add(Fault("skip", begun + 5_000, 0, {"count": 200}))
        async with contextlib.aclosing(feed.stream(None, 3)) as stream:
            while "limits our requests (HTTP 429)" not in feed.state().detail:
                await anext(stream)
            before = exchange.requests
            await exchange.clock.sleep_until(exchange.start_ms + begun + 60_000)
        # At most one question each 20 s.
        assert exchange.requests - before <= 3


async def test_two_markets_of_one_exchange_read_its_list_once_and_keep_quiet_together() -> None:
    async with simulated(symbols=["ETH/USDT", "BTC/USDT"]) as exchange:
        timing = FeedTiming.accelerated(SPEED)
        manners = Manners(timing)
        one, other = (
            ExchangeFeed(
                exchange="binance",
                symbol=symbol,
                timeframe="1s",
                ccxt_config=exchange.ccxt_config(),
                timing=timing,
                manners=manners,
            )
            for symbol in ("ETH/USDT", "BTC/USDT")
        )
        async with one, other:
            assert one._client.api.markets is other._client.api.markets
            exchange.book.add(Fault("rest_status", 0, 10**9, {"status": 429, "retry_after": 10**6}))
            streams = [feed.stream(None, 5) for feed in (one, other)]
            waiting = [asyncio.create_task(drain(stream)) for stream in streams]
            await eventually(lambda: "HTTP 429" in one.state().detail + other.state().detail)
            asked = exchange.requests
            await exchange.clock.sleep_until(exchange.clock.now_ms() + 20_000)
            # Both may have asked before either was told.
            assert exchange.requests <= asked + 1
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


async def drain(stream: AsyncGenerator[FeedItem, None]) -> None:
    async with contextlib.aclosing(stream):
        async for _ in stream:
            pass


# --- resuming ---------------------------------------------------------------------------------------------------------


async def test_resuming_goes_on_right_after_the_last_candle() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        after = int(exchange.clock.now_ms()) // 1_000 * 1_000 - 1_500_000
        candles = candles_of(await collect(feed, 1_510, after=after))
        assert [c.open_time for c in candles] == [after + 1_000 * n for n in range(1, 1_511)]


async def test_what_the_exchange_corrected_while_we_were_away_is_told_when_the_stored_candles_are_given() -> None:
    async with simulated() as exchange:
        async with make_feed(exchange) as feed:
            stored = candles_of(await collect(feed, 100, backfill=100))
        stored = [replace(c, close=c.open, high=c.high + 1) if n in (20, 99) else c for n, c in enumerate(stored)]
        async with make_feed(exchange) as feed:
            items: list[FeedItem] = []
            async with contextlib.aclosing(feed.stream(stored[-1].open_time, 100, stored)) as stream:
                while len(candles_of(items)) < 20:
                    items.append(await anext(stream))
        corrected = [item.candle for item in items if isinstance(item, Correction)]
        assert [c.open_time for c in corrected] == [stored[20].open_time, stored[99].open_time]
        for candle in corrected:
            truth = exchange.truth.candle("ETHUSDT", candle.open_time, 1_000)
            assert truth is not None
            assert (candle.high, candle.close) == (truth.high, truth.close)
        assert candles_of(items)[0].open_time == stored[-1].open_time + 1_000


async def test_what_is_older_than_a_day_is_one_gap() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        after = int(exchange.clock.now_ms()) // 1_000 * 1_000 - 100_000_000
        gap, first = (await collect(feed, 1, after=after))[:2]
        assert isinstance(gap, Gap)
        assert isinstance(first, Candle)
        assert (gap.start, gap.end) == (after + 1_000, first.open_time)
        assert exchange.clock.now_ms() - first.open_time == pytest.approx(86_400_000, abs=60_000)


async def test_an_exchange_hole_right_after_the_last_candle_is_a_gap() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        after = int(exchange.clock.now_ms()) // 1_000 * 1_000 - 100_000
        exchange.truth.erase("ETHUSDT", after + 1_000, 10)
        items = await collect(feed, 20, after=after)
        assert items[0] == Gap(feed.market, after + 1_000, after + 11_000, "the exchange has no candles here")


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_failures_25_a_dropped_connection_costs_no_candle() -> None:
    # Slow enough that the socket is there when it is dropped.
    plans = ([Fault("drop", 6_400, 0, {"how": how})] for how in ("rst", "fin", "1000"))
    for result in await each_rehearsed(*plans, speed=8.0):
        assert result.state is not None
        assert result.state.reconnects == 1
        assert result.gaps == []


@pytest.mark.parametrize("seconds", [1, 10, pytest.param(120, marks=pytest.mark.slow)])
async def test_failures_25_after_a_cut_the_feed_catches_up_within_ten_seconds_in_order(seconds: int) -> None:
    plans = ([Fault(kind, 3_000, seconds * 1_000)] for kind in ("cut", "down"))
    for result in await each_rehearsed(*plans, seconds=6):
        assert result.recovered_ms is not None
        assert result.recovered_ms < 10_000 + 3_000 * SPEED
        assert result.gaps == []


async def test_failures_27_a_stream_that_repeats_the_same_candle_is_not_fresh_and_is_dialled_again() -> None:
    async with simulated() as exchange, make_feed(exchange) as feed:
        exchange.book.add(Fault("rest_status", int(exchange.since_start()) + 6_000, 16_000, {"status": 503}))
        exchange.book.add(Fault("stall", int(exchange.since_start()) + 6_000, 16_000))
        repeating = asyncio.create_task(repeat_last_candle(exchange))
        kinds = []
        async with contextlib.aclosing(feed.stream(None, 5)) as stream:
            async for item in stream:
                if isinstance(item, Notice):
                    kinds.append(item.kind)
                    if item.kind == "stale":
                        assert feed.state().status != "live"
                        assert (feed.state().age_ms or 0) >= 5_000
                if "recovered" in kinds:
                    break
        repeating.cancel()
        assert kinds == ["stale", "recovered"]
        assert feed.state().reconnects >= 1
        assert feed.state().status == "live"


async def repeat_last_candle(exchange: SimulatedExchange) -> None:
    """Push the candle of six seconds after the start again and again."""
    open_time = int(exchange.start_ms) // 1_000 * 1_000 + 6_000
    while True:
        await exchange.clock.sleep_until(max(open_time + 1_000, exchange.clock.now_ms() + 1_000))
        candle = exchange.truth.candle("ETHUSDT", open_time, 1_000)
        assert candle is not None
        exchange.sockets.push_candle("ETHUSDT", candle)


async def test_failures_31_candles_out_of_order_cause_no_restart() -> None:
    result = await rehearsed(*(Fault(kind, 2_000 + 500 * n) for n in range(20) for kind in ("reorder", "old_final")))
    assert result.state is not None
    assert result.state.reconnects == 0


async def test_failures_33_while_rest_is_slow_at_the_start_the_socket_s_candles_wait_and_none_is_missing() -> None:
    result = await rehearsed(Fault("rest_stall", 0, 10_000), backfill=30)
    assert len(result.order) >= 45
    assert result.gaps == []


async def test_failures_35_a_consumer_that_is_busy_for_every_candle_skips_none() -> None:
    async with simulated(speed=4.0) as exchange, make_feed(exchange) as feed:
        candles: list[Candle] = []
        async with contextlib.aclosing(feed.stream(None, 5)) as stream:
            async for item in stream:
                if isinstance(item, Candle):
                    candles.append(item)
                    await exchange.clock.sleep_until(exchange.clock.now_ms() + 400)
                if len(candles) == 25:
                    break
        assert [c.open_time for c in candles] == [candles[0].open_time + 1_000 * n for n in range(25)]
        # A second of a busy machine counts as four.
        assert (feed.state().lag_ms or 0) < 2_000 + 4_000


async def test_failures_37_senseless_prices_are_counted_and_the_right_candle_fetched() -> None:
    values = ("NaN", "inf", "0", "-1", "", None, "abc")
    faults = [Fault("bad_price", 2_000 + 1_500 * n, 0, {"value": value}) for n, value in enumerate(values)]
    result = await rehearsed(*faults, seconds=16)
    assert result.state is not None
    assert result.state.rejected == {"nonfinite": 2, "price": 2, "missing": 3}
    assert result.corrections == 0


async def test_failures_37_frames_that_make_no_sense_are_survived_without_a_new_socket() -> None:
    texts = ("json", "nan", "bare", "array", "no_k", "deep", "binary")
    faults = [Fault("malformed", 2_000 + 1_000 * n, 0, {"text": text}) for n, text in enumerate(texts)]
    result = await rehearsed(*faults)
    assert result.state is not None
    assert result.state.reconnects == 0
    assert result.state.rejected["malformed"] >= 5


async def test_what_the_socket_misses_silently_is_fetched() -> None:
    plans = [
        [Fault("skip", 3_000, 0, {"count": 4})],
        [Fault("no_final", 3_000, 0, {"count": 3})],
        [Fault("drop", 3_600)],  # after the partial frame, before the final one
        [Fault("zombie", 3_000, 1_000)],
        [Fault("drop", 2_000), Fault("subscribe_refused", 0, 4_000)],
        [Fault("malformed", 3_000, 0, {"text": "huge"})],
        [Fault("delay", 3_000, 4_000, {"ms": 1_500})],
        [Fault("burst", 3_000, 6_000)],
    ]
    for result in await each_rehearsed(*plans):
        assert result.gaps == []


async def test_rest_answers_that_are_no_rows_are_not_believed() -> None:
    plans = (
        [Fault("skip", 3_000, 0, {"count": 3}), Fault("rest_text", 2_000, 6_000, {"text": text})]
        for text in ("truncated", "html", "object", "list")
    )
    for result in await each_rehearsed(*plans):
        assert result.gaps == []


async def test_an_exchange_clock_that_is_off_does_not_matter() -> None:
    plans = (
        [Fault("time_off", 0, 8_000, {"ms": ms}), Fault("skip", 3_000, 0, {"count": 3})]
        for ms in (3_600_000, -3_600_000, 4_000)
    )
    for result in await each_rehearsed(*plans):
        assert result.gaps == []
        assert result.corrections == 0


async def test_an_exchange_clock_that_jumps_is_followed() -> None:
    await each_rehearsed(*([Fault("shift", 5_000, 0, {"ms": ms})] for ms in (5_000, -4_000)))


async def test_a_late_correction_of_a_learned_candle_is_found_and_told_once() -> None:
    plans = ([Fault("correct", 6_000, 0, {"back": 3, "push": push})] for push in (True, False))
    assert [result.corrections for result in await each_rehearsed(*plans)] == [1, 1]


async def test_a_hole_of_the_exchange_s_own_is_a_gap_and_the_feed_goes_on() -> None:
    result = await rehearsed(Fault("erase", 3_000, 0, {"count": 5}), seconds=16)
    assert [(gap.end - gap.start) // 1_000 for gap in result.gaps] == [5]
    assert result.late == 0


async def test_while_rest_cannot_be_asked_a_hole_is_held_open_only_so_long() -> None:
    async with simulated() as exchange:
        timing = FeedTiming(**{**as_options(FeedTiming.accelerated(SPEED)), "hold_ms": 5_000})
        async with make_feed(exchange, timing) as feed:
            exchange.book.add(Fault("skip", int(exchange.since_start()) + 4_000, 0, {"count": 3}))
            exchange.book.add(Fault("rest_status", int(exchange.since_start()) + 3_000, 20_000, {"status": 503}))
            items = []
            async with contextlib.aclosing(feed.stream(None, 3)) as stream:
                async for item in stream:
                    items.append(item)
                    if isinstance(item, Correction):
                        break
            gap = next(item for item in items if isinstance(item, Gap))
            assert gap.reason.startswith("REST could not be asked: ")
            assert gap.end - gap.start == 3_000
            assert gap.start <= items[-1].candle.open_time < gap.end


async def test_the_feed_says_stale_and_recovered_once_each() -> None:
    # Slow, so that a busy machine's pauses are not a stale feed.
    result = await rehearsed(Fault("cut", 4_000, 12_000), seconds=10, speed=4.0)
    assert [notice.kind for notice in result.notices] == ["stale", "recovered"]
    assert result.notices[0].detail["age_ms"] >= 5_000


# --- sockets ----------------------------------------------------------------------------------------------------------


async def test_an_exchange_that_was_halted_before_we_came_is_stale_and_not_for_ever_backfilling() -> None:
    async with simulated() as exchange:
        start = int(exchange.clock.now_ms()) // 1_000 * 1_000
        exchange.truth.erase("ETHUSDT", start - 60_000, 100_000)
        async with make_feed(exchange) as feed, contextlib.aclosing(feed.stream(start - 100_000, 0)) as stream:
            notice = await anext(item async for item in stream if isinstance(item, Notice))
            assert notice.kind == "stale"
            assert feed.state().status == "stale"
            assert feed.state().detail == "the exchange sends no newer candles"


async def test_a_socket_is_renewed_with_overlap_before_the_exchange_would_cut_it() -> None:
    async with simulated() as exchange:
        timing = FeedTiming(**{**as_options(FeedTiming.accelerated(SPEED)), "renew_seconds": 0.4})
        sessions = exchange.sockets.sessions = Sessions()
        async with make_feed(exchange, timing) as feed:
            before = exchange.requests
            candles = candles_of(await collect(feed, 60))
            assert len(sessions.left) >= 2
            assert min(sessions.left) >= 1
            assert [c.open_time for c in candles] == [candles[0].open_time + 1_000 * n for n in range(60)]
            assert feed.state().reconnects >= 3
            assert len(sessions) <= 2
            # No candle was missed, so REST was asked for the backfill and the rolling reread only.
            assert exchange.requests - before < 30


async def test_a_renewal_that_fails_leaves_the_old_socket_at_work_and_is_tried_again() -> None:
    await asyncio.gather(*(renew_in_vain(kind) for kind in ("ws_hang", "ws_status", "deaf")))


async def renew_in_vain(kind: str) -> None:
    """Let each socket but the first hang, be refused or bring nothing."""
    # Slow, so that a busy machine's pauses do not look like a silent socket.
    async with simulated(speed=8.0) as exchange:
        timing = FeedTiming(
            **{**as_options(FeedTiming.accelerated(8.0)), "renew_seconds": 0.6, "renew_again_seconds": 0.1}
        )
        sessions = exchange.sockets.sessions = Sessions()
        async with make_feed(exchange, timing) as feed, contextlib.aclosing(feed.stream(None, 5)) as stream:
            items: list[FeedItem] = []
            while not sessions:
                items.append(await anext(stream))
            first = set(sessions)
            if kind == "deaf":
                sessions.deaf = True
            else:
                exchange.book.add(Fault(kind, 0, 10**9))
            while feed.state().reconnects < 3:
                items.append(await anext(stream))
            candles = candles_of(items)
            assert [c.open_time for c in candles] == [candles[0].open_time + 1_000 * n for n in range(len(candles))]
            assert sessions >= first
            assert sessions.opened <= 1 + 3


class Sessions(set[Session]):
    """Counts those that came, remembers how many were left each time one went; ``deaf``: new ones bring nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.left: list[int] = []
        self.deaf = False

    def add(self, session: Session) -> None:
        super().add(session)
        self.opened += 1
        session.dead = self.deaf

    def discard(self, session: Session) -> None:
        super().discard(session)
        self.left.append(len(self))


async def test_dials_are_kept_within_their_budget() -> None:
    async with simulated() as exchange:
        timing = FeedTiming(
            **{**as_options(FeedTiming.accelerated(SPEED)), "dials_per_window": 4, "dial_window_seconds": 60}
        )
        async with make_feed(exchange, timing) as feed:
            exchange.book.add(Fault("ws_status", 0, 10**9, {"status": 503}))
            await collect(feed, 40)
            assert feed.state().reconnects <= 3


def as_options(timing: FeedTiming) -> dict[str, Any]:
    return {name: getattr(timing, name) for name in timing.__slots__}


async def test_leaving_takes_less_than_five_seconds_though_the_exchange_answers_nothing() -> None:
    async with simulated() as exchange:
        feed = make_feed(exchange, FeedTiming(speed=SPEED))
        async with feed:
            await collect(feed, 10)
            exchange.book.add(Fault("cut", 0, 10**9))
            started = time.monotonic()
        assert time.monotonic() - started < 5
        assert not [task for task in asyncio.all_tasks() if "ETH/USDT" in task.get_name()]


@pytest.mark.parametrize("swallowed", [1, 10**6])
async def test_a_task_that_swallows_cancellations_does_not_keep_the_feed_from_leaving(
    monkeypatch: pytest.MonkeyPatch, swallowed: int
) -> None:
    monkeypatch.setattr("service.feed.exchange._STOP_SECONDS", 0.05)
    release = asyncio.Event()

    async def stubborn() -> None:
        for _ in range(swallowed):
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
                return
        await release.wait()

    async with simulated() as exchange:
        async with asyncio.timeout(10), make_feed(exchange) as feed:
            task = asyncio.create_task(stubborn())
            feed._tasks.append(task)
            await asyncio.sleep(0)
        assert task.done() == (swallowed == 1)
        release.set()
        await asyncio.wait([task])


async def test_failures_29_leaving_while_rest_is_being_asked_leaves_nothing_open_and_prints_nothing() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-m", "tests.service.feed.leave_early",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    lines = [line for line in err.decode().splitlines() if not line.startswith("Executing ")]
    assert lines == []
    assert out.decode().strip() == "left cleanly"
    assert process.returncode == 0


# --- candles made of trades -------------------------------------------------------------------------------------------


async def test_where_an_exchange_has_no_such_candles_they_are_made_of_its_trades() -> None:
    async with simulated(speed=8.0) as exchange:
        feed = ExchangeFeed(
            exchange="binance",
            symbol="ETH/USDT",
            timeframe="1s",
            ccxt_config=exchange.ccxt_config(),
            timing=FeedTiming.accelerated(8.0),
            from_trades=True,
        )
        async with feed:
            exchange.book.add(Fault("drop", int(exchange.since_start()) + 8_000))
            exchange.book.add(Fault("down", int(exchange.since_start()) + 16_000, 5_000))
            candles = candles_of(await collect(feed, 70, backfill=30))
            assert feed.state().reconnects >= 1
        assert [c.open_time for c in candles] == [candles[0].open_time + 1_000 * n for n in range(70)]
        for candle in candles:
            truth = exchange.truth.candle("ETHUSDT", candle.open_time, 1_000)
            assert truth is not None
            assert (candle.open, candle.high, candle.low, candle.close) == (
                truth.open,
                truth.high,
                truth.low,
                truth.close,
            )
            assert candle.volume == pytest.approx(truth.volume, abs=1e-9)
            assert (candle.source == "filled") == (truth.trades == 0)


@pytest.mark.parametrize("exchange", ["kraken", "coinbase", "bybit", "gate", "kucoin"])
def test_exchanges_without_second_candles_are_followed_by_their_trades(exchange: str) -> None:
    feed = ExchangeFeed(exchange=exchange, symbol="BTC/USD", timeframe="1s", ccxt_config={})
    assert feed._client.built


@pytest.mark.parametrize("exchange", ["binance", "binanceus", "upbit", "okx"])
def test_exchanges_with_second_candles_are_followed_by_those(exchange: str) -> None:
    feed = ExchangeFeed(exchange=exchange, symbol="BTC/USD", timeframe="1s", ccxt_config={})
    assert not feed._client.built
    assert "1s" in feed._client.api.timeframes


# --- everything at once -----------------------------------------------------------------------------------------------


async def test_random_faults_end_in_the_truth() -> None:
    await each_rehearsed(*(random_plan(seed, 30) for seed in range(6)), seconds=30)


async def test_one_seed_gives_one_identical_run() -> None:
    plan = random_plan(7, 20)
    runs = await each_rehearsed(plan, plan, seconds=20, seed=7, start_ms=1_790_000_000_000)
    one, other = ({t: (c.open, c.close, c.volume) for t, c in run.stored.items()} for run in runs)
    shared = one.keys() & other.keys()
    assert len(shared) > 30
    assert all(one[time] == other[time] for time in shared)


def test_the_script_holds_every_fault_there_is() -> None:
    assert {fault.kind for fault in scripted_plan()} == set(KINDS)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_minutes_with_every_fault_end_in_the_truth() -> None:
    result = await rehearsed(*scripted_plan(600), seconds=600, speed=10.0)
    assert len(result.gaps) == 1


@pytest.mark.slow
@pytest.mark.timeout(3_000)
async def test_two_hundred_random_plans_end_in_the_truth() -> None:
    for first in range(0, 200, 4):
        plans = (random_plan(seed, 60) for seed in range(first, first + 4))
        await each_rehearsed(*plans, seconds=60, seed=first)
