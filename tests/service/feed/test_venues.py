"""Exchanges other than Binance, followed through their real ccxt clients: most show only trades."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from models.candle import Candle
from service.feed import trade_client
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.ports import Correction, FeedItem, Gap
from tests.service.feed.venue import SECOND, Venue
from tests.service.feed.venues import VENUES, Coinbase, Gate, Kraken

SPEED = 3.0


def make_feed(venue: Venue, config: dict[str, object]) -> ExchangeFeed:
    return ExchangeFeed(
        exchange=venue.exchange,
        symbol=venue.symbol,
        timeframe="1s",
        ccxt_config=config,
        timing=replace(FeedTiming.accelerated(venue.speed), connect_seconds=30),
        seed=1,
    )


async def collect(stream: AsyncGenerator[FeedItem, None], count: int, source: str = "") -> list[FeedItem]:
    """Take items until ``count`` candles came (of this ``source``)."""
    items: list[FeedItem] = []
    while sum(isinstance(item, Candle) and source in ("", item.source) for item in items) < count:
        items.append(await anext(stream))
    return items


def check(venue: Venue, items: list[FeedItem]) -> None:
    """Expect every second once, in order, as its trades made it; those without a trade filled in flat."""
    due = next(item.open_time for item in items if isinstance(item, Candle))
    stored: dict[int, Candle] = {}
    for item in items:
        if isinstance(item, Candle):
            assert item.open_time == due
            due += SECOND
            stored[item.open_time] = item
        elif isinstance(item, Gap):
            # A machine too busy to ask in time asks too late where only the newest trades are told.
            assert venue.forgetful
            due = item.end
        elif isinstance(item, Correction):
            stored[item.candle.open_time] = item.candle
    for candle in stored.values():
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
        assert feed.state().reconnects >= 1
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
    """Let nobody trade for the better part of a minute."""
    venue = make_venue(7, 4.0)
    async with (
        venue.serve() as config,
        make_feed(venue, config) as feed,
        contextlib.aclosing(feed.stream(None, 5)) as stream,
    ):
        items = await collect(stream, 6)
        venue.tape.until_us += 50_000_000
        # A good many in a row, so that they do come while the market is quiet.
        items += await collect(stream, 15, "filled")
        assert venue.now_ms() < venue.tape.until_us / 1_000
    check(venue, items)


async def test_a_long_time_without_a_trade_is_filled_in_as_it_passes() -> None:
    await asyncio.gather(*(stay_quiet(make_venue) for make_venue in VENUES))
