"""A long run costs no memory, sockets, tasks or files."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import psutil
import pytest

from models.candle import Candle
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.simulator.faults import Fault
from service.simulator.server import SimulatedExchange
from tests.service.feed.rehearsal import make_feed

MIB = 2**20


async def soak(count: int, warm_up: int, speed: float) -> dict[str, float]:
    """Follow the market for ``count`` candles with a dropped socket now and then; returns how resources grew."""
    process = psutil.Process()
    async with SimulatedExchange(speed=speed) as exchange:
        feed = make_feed(exchange, FeedTiming(speed=speed, dials_per_window=10_000))
        for n in range(0, count, min(count, 2_000) // 2):
            exchange.book.add(Fault("drop", (n + 100) * 1_000))
        async with feed:
            before, after, drops = await _follow(feed, process, count, warm_up)
    return {
        "mib_per_10_000": (after[0] - before[0]) / MIB / (count - warm_up) * 10_000,
        "tasks": after[1] - before[1],
        "files": after[2] - before[2],
        "reconnects": drops,
    }


async def _follow(
    feed: ExchangeFeed, process: psutil.Process, count: int, warm_up: int
) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
    seen, before, due = 0, (0, 0, 0), None
    async with contextlib.aclosing(feed.stream(None, 10)) as stream:
        async for item in stream:
            if not isinstance(item, Candle):
                continue
            assert due in (None, item.open_time)
            due = item.open_time + 1_000
            seen += 1
            if seen == warm_up:
                before = _resources(process)
            if seen == count:
                break
        return before, _resources(process), feed.state().reconnects


def _resources(process: psutil.Process) -> tuple[int, int, int]:
    gc.collect()
    return process.memory_info().rss, len(asyncio.all_tasks()), process.num_fds()


async def test_a_short_run_leaks_no_task_or_file() -> None:
    grown = await soak(400, 150, 100.0)
    assert grown["tasks"] <= 4
    assert grown["files"] <= 4


@pytest.mark.slow
@pytest.mark.timeout(3_000)
async def test_a_day_of_candles_costs_at_most_a_mebibyte_per_ten_thousand() -> None:
    grown = await soak(86_400, 10_000, 200.0)
    assert grown["mib_per_10_000"] <= 1.0
    assert grown["tasks"] <= 4
    assert grown["files"] <= 4
