"""Enter a feed, break off while REST and socket are busy, and leave: run with warnings as errors by a test."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys

from service.feed.timing import FeedTiming
from service.simulator.faults import Fault
from service.simulator.server import SimulatedExchange
from tests.service.feed.rehearsal import make_feed


async def main() -> None:
    async with SimulatedExchange(speed=20) as exchange:
        async with (
            make_feed(exchange, FeedTiming(speed=20)) as feed,
            contextlib.aclosing(feed.stream(None, 3_000)) as stream,
        ):
            for _ in range(20):
                await anext(stream)
            exchange.book.add(Fault("rest_stall", 0, 10**9))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.001)
        gc.collect()
        await asyncio.sleep(0)


asyncio.run(main())
gc.collect()
sys.stdout.write("left cleanly\n")
