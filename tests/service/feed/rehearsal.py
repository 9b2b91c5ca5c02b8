"""Run the real feed against the simulated exchange with a plan of faults, and compare what came out with the truth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from models.candle import Candle
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.ports import Correction, FeedItem, FeedState, Gap, Notice
from service.simulator.faults import Fault
from service.simulator.server import SimulatedExchange

RECOVERY_MS = 30_000


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
    faults: Sequence[Fault], *, seconds: int, speed: float, backfill: int = 20, seed: int = 0
) -> tuple[Rehearsal, list[str]]:
    """Run ``faults`` for ``seconds`` of the exchange's time, and let it recover; returns also the differences."""
    result = Rehearsal()
    async with SimulatedExchange(speed=speed, seed=seed) as exchange, make_feed(exchange) as feed:
        stream = feed.stream(None, backfill)
        begun = exchange.since_start()
        for fault in faults:
            exchange.book.add(replace(fault, at_ms=int(begun) + fault.at_ms))
        ends = max([begun + _end_ms(fault) for fault in faults], default=begun)
        until = max(begun + seconds * 1_000, ends) + RECOVERY_MS
        async with contextlib.aclosing(stream):
            while exchange.since_start() < until:
                with contextlib.suppress(TimeoutError):
                    item = await asyncio.wait_for(anext(stream), 5)
                    result.take(item)
                    _note_recovery(result, exchange, item, ends)
        result.state = feed.state()
        result.requests = exchange.requests
        return result, result.compare(exchange)


def _end_ms(fault: Fault) -> int:
    return fault.at_ms + max(fault.lasts_ms, 1_000 * fault.option("count", 0) + 1_000)


def _note_recovery(result: Rehearsal, exchange: SimulatedExchange, item: FeedItem, ends: float) -> None:
    if result.recovered_ms is None and isinstance(item, Candle) and exchange.since_start() > ends:
        age = exchange.clock.now_ms() - item.open_time - 1_000
        if age < 2_500:
            result.recovered_ms = exchange.since_start() - ends
