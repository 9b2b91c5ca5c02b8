"""When REST is asked, and how often."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from service.feed.assembler import Assembler, AssemblerRules
from service.feed.client import ExchangeClient
from service.feed.clock import ExchangeClock
from service.feed.pace import Manners
from service.feed.reconciler import Reconciler
from service.feed.rows import Grid
from service.feed.timing import FeedTiming
from service.feed.trade_client import trades_timing

SPEED = 20.0
SECOND = 1_000


class LateClient(ExchangeClient):
    """Answers with every candle until ``late_ms`` ago, after no time at all; counts the questions."""

    dense = flagged = True

    def __init__(self, clock: ExchangeClock, late_ms: int, built: bool) -> None:
        self.built = built
        self.asked = 0
        self._clock = clock
        self._late_ms = late_ms

    def row_limit(self) -> int:
        return 1_000

    async def time_ms(self) -> int:
        return int(self._clock.now_ms())

    async def candles(self, since: int | None, limit: int) -> list[list[Any]]:
        self.asked += 1
        await asyncio.sleep(0)
        newest = int(self._clock.now_ms() - self._late_ms) // SECOND * SECOND
        first = newest - SECOND if since is None else since
        return [[time, 10.0, 10.0, 10.0, 10.0, 1.0] for time in range(first, newest + 1, SECOND)][:limit]


@pytest.mark.parametrize(("late_ms", "built"), [(0, False), (1_000, False), (2_000, False), (2_000, True)])
async def test_where_rest_alone_follows_the_market_it_is_asked_no_oftener_than_twice_a_second(
    late_ms: int, built: bool
) -> None:
    timing = FeedTiming(speed=SPEED)
    timing = trades_timing(timing) if built else timing
    clock = ExchangeClock(SPEED)
    client = LateClient(clock, late_ms, built)
    start = int(clock.now_ms()) // SECOND * SECOND - 10 * SECOND
    assembler = Assembler("m", Grid(SECOND), start, AssemblerRules(built=built))
    news = asyncio.Event()
    asking = asyncio.create_task(
        Reconciler(client, assembler, clock, timing, random.Random(0), Manners(timing), news.set).run()
    )
    candles = 0
    begun_ms = clock.elapsed_ms()
    while candles < 30:
        await news.wait()
        news.clear()
        while assembler.take() is not None:
            candles += 1
    asking.cancel()
    # Besides those: the first catch-up, and every five seconds a reread.
    seconds = (clock.elapsed_ms() - begun_ms) / 1_000
    assert client.asked <= 2 * seconds + seconds / 5 + 4
