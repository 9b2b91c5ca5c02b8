"""Run the real feed against the simulated exchange with a plan of faults, and compare what came out with the truth."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from models.candle import Candle
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.ports import Correction, FeedItem, FeedState, Gap, Notice
from service.simulator.faults import Fault, random_plan
from service.simulator.server import SimulatedExchange

# Late corrections are found when recent candles are read again, every five seconds.
SETTLE_MS = 7_000


@dataclass
class Rehearsal:
    """What a consumer that stores everything ended up with."""

    stored: dict[int, Candle] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    corrections: int = 0
    late: int = 0
    notices: list[Notice] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    recovered_ms: float | None = None
    state: FeedState | None = None
    requests: int = 0

    def take(self, item: FeedItem) -> None:
        if isinstance(item, Candle):
            self._check_order(item)
            self.order.append(item.open_time)
            self.stored[item.open_time] = item
        elif isinstance(item, Correction):
            self.corrections += 1
            self.late += item.candle.open_time not in self.stored
            self.stored[item.candle.open_time] = item.candle
        elif isinstance(item, Gap):
            self.gaps.append(item)
        else:
            self.notices.append(item)

    def _check_order(self, candle: Candle) -> None:
        if not self.order:
            return
        expected = self.order[-1] + 1_000
        while any(gap.start == expected for gap in self.gaps):
            expected = next(gap.end for gap in self.gaps if gap.start == expected)
        if candle.open_time != expected:
            self.wrong.append(f"{candle.open_time} came where {expected} was due")

    def compare(self, exchange: SimulatedExchange) -> list[str]:
        """Return every difference from the exchange's truth, between the first and the last candle."""
        found = list(self.wrong)
        if not self.order:
            return [*found, "nothing came"]
        for open_time in range(self.order[0], self.order[-1] + 1_000, 1_000):
            truth, mine = exchange.truth.candle("ETHUSDT", open_time, 1_000), self.stored.get(open_time)
            in_gap = any(gap.start <= open_time < gap.end for gap in self.gaps)
            if truth is None and mine is not None:
                found.append(f"{open_time} was stored though it never was")
            elif truth is None and not in_gap:
                found.append(f"{open_time} is missing and no gap says so")
            elif truth is not None and mine is None:
                found.append(f"{open_time} is lost")
            elif truth is not None and mine is not None:
                values = (truth.open, truth.high, truth.low, truth.close, truth.volume)
                if values != (mine.open, mine.high, mine.low, mine.close, mine.volume):
                    found.append(f"{open_time} is {mine}, was {values}")
        return found


def make_feed(exchange: SimulatedExchange, timing: FeedTiming | None = None) -> ExchangeFeed:
    """Make a feed that follows ETH/USDT there."""
    return ExchangeFeed(
        exchange="binance",
        symbol="ETH/USDT",
        timeframe="1s",
        ccxt_config=exchange.ccxt_config(),
        simulated=True,
        timing=timing or FeedTiming.accelerated(exchange.clock.speed),
        seed=1,
    )


async def rehearse(
    faults: Sequence[Fault],
    *,
    seconds: int,
    speed: float,
    backfill: int = 20,
    seed: int = 0,
    recovery_seconds: int = 60,
    start_ms: int | None = None,
    timing: FeedTiming | None = None,
) -> tuple[Rehearsal, list[str]]:
    """Run ``faults`` for ``seconds`` of the exchange's time; returns also how the outcome differs from the truth.

    After the last fault the feed has ``recovery_seconds`` to come back and to put everything right.
    """
    result = Rehearsal()
    async with (
        SimulatedExchange(speed=speed, seed=seed, start_ms=start_ms) as exchange,
        make_feed(exchange, timing) as feed,
    ):
        begun = exchange.since_start()
        for fault in faults:
            exchange.book.add(replace(fault, at_ms=int(begun) + fault.at_ms))
        ends = max([begun + _end_ms(fault) for fault in faults], default=begun)
        at_least = max(begun + seconds * 1_000, ends + SETTLE_MS)
        # In accelerated time a busy machine needs more: twenty real seconds are no fault of the feed.
        at_most = at_least + max(recovery_seconds * 1_000, 20_000 * speed)
        consumer = asyncio.create_task(_consume(result, exchange, feed.stream(None, backfill), ends))
        await _until(exchange, at_least, consumer)
        while exchange.since_start() < at_most and (result.recovered_ms is None or result.compare(exchange)):
            await _until(exchange, exchange.since_start() + 1_000, consumer)
        consumer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await consumer
        result.state = feed.state()
        result.requests = exchange.requests
        return result, result.compare(exchange)


def _end_ms(fault: Fault) -> int:
    return fault.at_ms + max(fault.lasts_ms, 1_000 * fault.option("count", 0) + 1_000)


async def _until(exchange: SimulatedExchange, time_ms: float, consumer: asyncio.Task[None]) -> None:
    """Wait until the exchange's clock shows this time since its start; a consumer that fails raises here."""
    while exchange.since_start() < time_ms:
        await asyncio.wait([consumer], timeout=(time_ms - exchange.since_start()) / 1_000 / exchange.clock.speed)
        if consumer.done():
            consumer.result()


async def _consume(
    result: Rehearsal, exchange: SimulatedExchange, stream: AsyncGenerator[FeedItem, None], ends: float
) -> None:
    async with contextlib.aclosing(stream):
        async for item in stream:
            result.take(item)
            age = exchange.clock.now_ms() - item.open_time - 1_000 if isinstance(item, Candle) else float("inf")
            # In accelerated time a busy machine shows as age: 0.1 s of it are allowed for.
            if (
                result.recovered_ms is None
                and exchange.since_start() > ends
                and age < 2_500 + 100 * exchange.clock.speed
            ):
                result.recovered_ms = exchange.since_start() - ends


def scripted_plan(seconds: int = 600) -> list[Fault]:
    """Make a plan with every fault there is, in every variant, one after the other."""
    variants: list[tuple[str, float, dict[str, Any]]] = [
        *(("drop", 0, {"how": how}) for how in ("rst", "fin", "1000", "1001")),
        ("shutdown_notice", 0, {}),
        *((kind, 12, {}) for kind in ("stall", "zombie", "black_hole", "ws_hang", "subscribe_refused")),
        *(("ws_status", 5, {"status": status}) for status in (503, 451, 429)),
        *(("malformed", 0, {"text": text}) for text in ("json", "nan", "bare", "array", "no_k", "deep")),
        *(("malformed", 0, {"text": text}) for text in ("empty", "null", "binary", "huge")),
        *((kind, 0, {}) for kind in ("duplicate", "old_final", "reorder")),
        *((kind, 0, {"count": 2}) for kind in ("skip", "no_final")),
        *(("bad_price", 0, {"value": value}) for value in ("NaN", "inf", "0", "-1", "", None, "abc")),
        ("delay", 6, {"ms": 1_500}),
        ("burst", 6, {}),
        *(("rest_status", 6, {"status": status}) for status in (418, 429, 451, 403, 500, 502, 503, 504)),
        ("rest_stall", 11, {}),
        *(("rest_text", 6, {"text": text}) for text in ("truncated", "html", "object", "list")),
        *((kind, 6, {}) for kind in ("rest_doubled", "rest_bad_rows", "rest_missing")),
        ("rest_lag", 6, {"ms": 2_000}),
        *(("time_off", 6, {"ms": ms}) for ms in (3_600_000, -3_600_000)),
        ("down", 3, {}),
        ("down", 20, {}),
        ("cut", 10, {}),
        ("erase", 0, {"count": 3}),
        *(("correct", 0, {"back": back, "push": push}) for back in (1, 20) for push in (True, False)),
        *(("shift", 0, {"ms": ms}) for ms in (5_000, -4_000)),
    ]
    step_ms = (seconds - 10) * 1_000 / len(variants)
    return [
        Fault(kind, int(5_000 + number * step_ms), int(lasts * 1_000), options)
        for number, (kind, lasts, options) in enumerate(variants)
    ]


def main(arguments: Sequence[str]) -> None:
    """Print what the scripted plan (``script``) or the random plan of a seed did: ``PLAN SPEED``."""
    plan = scripted_plan() if arguments[0] == "script" else random_plan(int(arguments[0]), 60)
    seed = 0 if arguments[0] == "script" else int(arguments[0])
    result, differences = asyncio.run(rehearse(plan, seconds=60, speed=float(arguments[1]), seed=seed))
    lines = [
        f"{len(plan)} faults, {len(result.order)} candles, {len(differences)} differences {differences[:3]}",
        f"gaps {result.gaps}, corrections {result.corrections}, late {result.late}, recovered {result.recovered_ms}",
        f"{result.requests} REST calls, {result.state}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
