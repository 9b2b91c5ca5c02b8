"""Exchanges other than Binance, followed through their real ccxt clients: most show only trades."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from models.candle import Candle
from service.feed import trade_client
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.ports import Correction, FeedItem, Gap
from tests.service.feed.venues import SECOND, VENUES, Coinbase, Gate, Kraken, Venue

SPEED = 8.0


def make_feed(venue: Venue, config: dict[str, object]) -> ExchangeFeed:
    return ExchangeFeed(
        exchange=venue.exchange,
        symbol=venue.symbol,
        timeframe="1s",
        ccxt_config=config,
        timing=FeedTiming.accelerated(venue.speed),
        seed=1,
    )


async def collect(stream: AsyncGenerator[FeedItem, None], count: int) -> list[FeedItem]:
    """Take items until ``count`` candles came."""
    items: list[FeedItem] = []
    while sum(isinstance(item, Candle) for item in items) < count:
        items.append(await anext(stream))
    return items


def check(venue: Venue, items: list[FeedItem]) -> None:
    """Expect every second once, in order, as its trades made it; those without a trade filled in flat."""
    candles = [item for item in items if isinstance(item, Candle)]
    assert [c.open_time for c in candles] == [candles[0].open_time + SECOND * n for n in range(len(candles))]
    assert not [item for item in items if isinstance(item, Gap)]
    corrected = {item.candle.open_time: item.candle for item in items if isinstance(item, Correction)}
    for candle in (corrected.get(candle.open_time, candle) for candle in candles):
        *prices, volume = venue.tape.row(candle.open_time)
        assert [candle.open, candle.high, candle.low, candle.close] == prices
        assert candle.volume == pytest.approx(volume, abs=1e-9)
        assert (candle.source == "filled") == (volume == 0)


async def follow_through_trouble(make_venue: type[Venue]) -> None:
    """Lose the socket, then everything for five seconds."""
    venue = make_venue(3, SPEED)
    async with (
        venue.serve() as config,
        make_feed(venue, config) as feed,
        contextlib.aclosing(feed.stream(None, 20)) as stream,
    ):
        items = await collect(stream, 25)
        await venue.drop()
        items += await collect(stream, 5)
        venue.down = True
        await venue.drop()
        await asyncio.sleep(5 / SPEED)
        venue.down = False
        items += await collect(stream, 20)
        assert feed.state().reconnects >= 2
        assert feed.state().filled > 5
    check(venue, items)
    assert len({item.open_time for item in items if isinstance(item, Candle) and item.source == "live"}) > 5


async def test_other_exchanges_seconds_come_whole_whatever_happens_to_their_sockets() -> None:
    await asyncio.gather(*(follow_through_trouble(make_venue) for make_venue in VENUES))


async def catch_up_by_pages(make_venue: type[Venue]) -> None:
    venue = make_venue(5, SPEED)
    async with (
        venue.serve() as config,
        make_feed(venue, config) as feed,
        contextlib.aclosing(feed.stream(None, 60)) as stream,
    ):
        check(venue, await collect(stream, 70))


async def test_more_trades_than_fit_in_one_answer_are_fetched_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trade_client, "PAGE_TRADES", 40)
    await asyncio.gather(*(catch_up_by_pages(make_venue) for make_venue in (Kraken, Coinbase, Gate)))


async def stay_quiet(make_venue: type[Venue]) -> None:
    """Let nobody trade for a minute."""
    venue = make_venue(7, SPEED)
    async with (
        venue.serve() as config,
        make_feed(venue, config) as feed,
        contextlib.aclosing(feed.stream(None, 5)) as stream,
    ):
        items = await collect(stream, 6)
        venue.tape.until_us += 60_000_000
        items += await collect(stream, 60)
    check(venue, items)
    assert sum(isinstance(item, Candle) and item.source == "filled" for item in items) >= 20


async def test_a_minute_without_a_trade_is_filled_in_as_it_passes() -> None:
    await asyncio.gather(*(stay_quiet(make_venue) for make_venue in VENUES))
