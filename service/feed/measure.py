"""Ask an exchange what time it is there."""

from __future__ import annotations

import time

from service.feed.client import CallFailed, ExchangeClient
from service.feed.clock import ExchangeClock, judge_time


async def set_clock(clock: ExchangeClock, client: ExchangeClient, interval_ms: int) -> int | None:
    """Set the clock from the exchange's own, checked against its newest candle; returns that candle's open time.

    Lets the client's CallFailed through.
    """
    rows = await client.candles(None, 2)
    newest = max((row[0] for row in rows if type(row[0]) is int), default=None)
    asked_at = clock.elapsed_ms()
    try:
        server = await client.time_ms()
    except CallFailed:  # candles come all the same; their times and ours have to do
        server = None
    travel_ms = (clock.elapsed_ms() - asked_at) / 2
    told = server + travel_ms if server is not None else None
    clock.set(judge_time(told, time.time() * 1_000, newest, interval_ms, dense=client.dense and not client.built))
    return newest
