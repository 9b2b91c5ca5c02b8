"""The feed against the simulated exchange, through the real ccxt client."""

from __future__ import annotations

import itertools

from models.candle import Candle
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.simulator.server import SimulatedExchange


async def test_backfill_and_live_candles_equal_the_exchange_s_truth_without_a_hole() -> None:
    async with SimulatedExchange(speed=10) as exchange, make_feed(exchange) as feed:
        candles = await take(feed, None, 50, 80)
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
        assert candles[0].source == "backfill"
        assert candles[-1].source == "live"
        assert feed.state().status == "live"


def make_feed(exchange: SimulatedExchange, **timing: float) -> ExchangeFeed:
    return ExchangeFeed(
        exchange="binance",
        symbol="ETH/USDT",
        timeframe="1s",
        ccxt_config=exchange.ccxt_config(),
        simulated=True,
        timing=FeedTiming(speed=exchange.clock.speed, **timing),
    )


async def take(feed: ExchangeFeed, after: int | None, backfill: int, count: int) -> list[Candle]:
    candles: list[Candle] = []
    stream = feed.stream(after, backfill)
    async for item in stream:
        if isinstance(item, Candle):
            candles.append(item)
        if len(candles) == count:
            break
    await stream.aclose()
    return candles
