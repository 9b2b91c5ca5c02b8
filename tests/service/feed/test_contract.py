"""Every feed keeps what service.ports.CandleFeed promises, whatever it is made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.simulator.server import SimulatedExchange
from tests.builders import SECOND, at, make_candle
from tests.contracts import BACKFILL, CANDLE_FEED_CHECKS, LIVE_FEED_CHECKS, FeedUnderTest
from tests.service.feed.venue import Venue
from tests.service.feed.venues import Kraken, Okx
from tests.support.feeds import ScriptedFeed

Make = Callable[[], contextlib.AbstractAsyncContextManager[FeedUnderTest]]


@contextlib.asynccontextmanager
async def simulated(*, from_trades: bool = False) -> AsyncIterator[FeedUnderTest]:
    async with SimulatedExchange(speed=8.0) as exchange:

        def open_feed() -> ExchangeFeed:
            return make_feed("binance", "ETH/USDT", exchange.ccxt_config(), 8.0, from_trades=from_trades)

        def truth(open_time: int) -> tuple[float, ...]:
            candle = exchange.truth.candle("ETHUSDT", open_time, 1_000)
            assert candle is not None
            return candle.open, candle.high, candle.low, candle.close, candle.volume

        yield FeedUnderTest(open_feed, exchange.clock.now_ms, truth)


@contextlib.asynccontextmanager
async def at_venue(kind: type[Venue]) -> AsyncIterator[FeedUnderTest]:
    venue = kind(11, 4.0)
    async with venue.serve() as config:

        def open_feed() -> ExchangeFeed:
            return make_feed(venue.exchange, venue.symbol, config, venue.speed)

        yield FeedUnderTest(open_feed, venue.now_ms, venue.tape.row)


def make_feed(exchange: str, symbol: str, config: dict[str, Any], speed: float, **options: Any) -> ExchangeFeed:
    timing = replace(FeedTiming.accelerated(speed), connect_seconds=30)
    return ExchangeFeed(
        exchange=exchange, symbol=symbol, timeframe="1s", ccxt_config=config, timing=timing, seed=1, **options
    )


def scripted() -> FeedUnderTest:
    candles = [make_candle(number) for number in range(3 * BACKFILL)]

    def truth(open_time: int) -> tuple[float, ...]:
        candle = next(candle for candle in candles if candle.open_time == open_time)
        return candle.open, candle.high, candle.low, candle.close, candle.volume

    return FeedUnderTest(lambda: ScriptedFeed(candles), lambda: at(BACKFILL) + SECOND / 2, truth)


@pytest.mark.parametrize(
    "make",
    [
        simulated,
        lambda: simulated(from_trades=True),
        lambda: at_venue(Kraken),
        lambda: at_venue(Okx),
    ],
    ids=["candles", "trades", "kraken", "okx"],
)
async def test_a_live_feed_keeps_its_promises(make: Make) -> None:
    async with make() as market:
        await asyncio.gather(*(check(market) for check in LIVE_FEED_CHECKS))


async def test_the_fake_feed_of_other_tests_keeps_them_too() -> None:
    for check in CANDLE_FEED_CHECKS:
        await check(scripted())
