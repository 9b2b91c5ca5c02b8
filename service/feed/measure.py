"""Ask an exchange what time it is there."""

from __future__ import annotations

import asyncio
import time

from service.feed.client import CallFailed, ExchangeClient
from service.feed.clock import ExchangeClock, judge_time

# An answer that took longer was thought about for longer, not under way.
_TRAVEL_MS = 500


async def set_clock(clock: ExchangeClock, client: ExchangeClient, interval_ms: int) -> int | None:
    """Set the clock from the exchange's own, checked against its newest candle; returns that candle's open time.

    Lets the client's CallFailed through.
    """
    asking = asyncio.create_task(_server_ms(clock, client), name="ask for the time")
    try:
        rows = await client.candles(None, 2)
        server_ms = await asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    newest = max((row[0] for row in rows if type(row[0]) is int), default=None)
    # Ours runs on by a clock that nobody sets, which the wall's may be; but it stands still while the machine sleeps.
    ours = (clock.now_ms(), time.time() * 1_000)
    clock.set(judge_time(server_ms, ours, newest, interval_ms, dense=client.dense and not client.built))
    return newest


async def _server_ms(clock: ExchangeClock, client: ExchangeClient) -> float | None:
    asked_at = clock.elapsed_ms()
    try:
        told = await client.time_ms()
    except CallFailed:  # candles come all the same; their times and ours have to do
        return None
    return told + min((clock.elapsed_ms() - asked_at) / 2, _TRAVEL_MS) if told is not None else None
