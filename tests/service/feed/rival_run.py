"""Run the real feed in real time against the rival exchange, and compare what came out with what that says at last."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.candle import Candle
from service.feed.exchange import ExchangeFeed
from service.feed.timing import FeedTiming
from service.ports import Correction, FeedItem, FeedState, FeedUnreachable, Gap
from tests.service.feed.rival import Rival
from tests.service.feed.rival_market import SECOND
from tests.service.feed.rival_plan import Plan, draw

FRESH_MS = 3_000
SETTLE_SECONDS = 8.0
AT_MOST_SECONDS = 90.0
# As the service does where it has nothing to fall back on.
PATIENT = FeedTiming(connect_seconds=30)


@dataclass
class Outcome:
    """What a consumer that stores everything ended up with; ``fresh_after`` is in seconds after the last trouble."""

    stored: dict[int, Candle] = field(default_factory=dict)
    due: int | None = None
    gaps: list[Gap] = field(default_factory=list)
    corrections: int = 0
    wrong: list[str] = field(default_factory=list)
    fresh_after: float | None = None
    state: FeedState | None = None
    refused: int = 0
    settled_after: float | None = None

    def take(self, item: FeedItem) -> None:
        if isinstance(item, Candle):
            if self.due not in (None, item.open_time):
                self.wrong.append(f"{item.open_time} came where {self.due} was due")
            if item.open_time in self.stored:
                self.wrong.append(f"{item.open_time} came twice")
            self.stored[item.open_time] = item
            self.due = item.open_time + SECOND
        elif isinstance(item, Correction):
            self.corrections += 1
            self.stored[item.candle.open_time] = item.candle
        elif isinstance(item, Gap):
            if self.due not in (None, item.start):
                self.wrong.append(f"a gap from {item.start} where {self.due} was due")
            self.gaps.append(item)
            self.due = item.end

    def differences(self, rival: Rival) -> list[str]:
        """Return what is not as the exchange has it now."""
        found = list(self.wrong)
        if not self.stored:
            return [*found, "nothing came"]
        for time in range(min(self.stored), max(self.stored) + SECOND, SECOND):
            truth, mine = rival.market.row(time, rival.now_ms()), self.stored.get(time)
            if truth is None and mine is not None:
                found.append(f"{time} never was")
            elif truth is None and not any(gap.start <= time < gap.end for gap in self.gaps):
                found.append(f"{time} is missing and no gap says so")
            elif truth is not None and mine is None:
                found.append(f"{time} is lost")
            elif truth is not None and mine is not None and truth.values != values(mine):
                found.append(f"{time} is {values(mine)}, not {truth.values}")
        return found


def values(candle: Candle) -> tuple[float, float, float, float, float]:
    return candle.open, candle.high, candle.low, candle.close, candle.volume


async def run(
    plan: Plan, seed: int, *, seconds: float, enough: int | None = None, timing: FeedTiming | None = None
) -> tuple[Outcome, list[str]]:
    """Follow the rival through its plan and until everything is right, or clearly will not be.

    ``enough``: follow it for ``seconds`` only, and until so many candles came.
    """
    outcome, rival = Outcome(), Rival(plan, seed)
    async with rival.serve() as config:
        following = asyncio.create_task(_follow(rival, config, outcome, timing or FeedTiming()))
        calm = max(seconds, plan.end) if enough is None else seconds
        while rival.at < calm + AT_MOST_SECONDS:
            await asyncio.wait([following], timeout=0.25)
            if following.done():
                following.result()
            if rival.at < calm:
                continue
            late = rival.now_ms() - (outcome.due or 0) - SECOND
            if outcome.fresh_after is None and late < FRESH_MS:
                outcome.fresh_after = rival.at - calm
            if enough is not None and len(outcome.stored) >= enough:
                break
            if outcome.fresh_after is not None and rival.at > calm + SETTLE_SECONDS and not outcome.differences(rival):
                outcome.settled_after = rival.at - calm
                break
        following.cancel()
        await asyncio.wait([following])
        return outcome, outcome.differences(rival)


async def _follow(rival: Rival, config: dict[str, object], outcome: Outcome, timing: FeedTiming) -> None:
    """Enter, as the service does, until the exchange lets us, then take everything."""
    while True:
        feed = ExchangeFeed(
            exchange="binance", symbol="ETH/USDT", timeframe="1s", ccxt_config=config, timing=timing, seed=1
        )
        try:
            async with feed, contextlib.aclosing(feed.stream(None, 30)) as stream:
                async for item in stream:
                    outcome.take(item)
                    outcome.state = feed.state()
        except FeedUnreachable:
            outcome.refused += 1
            await asyncio.sleep(1)


async def many(first: int, last: int, beside: int, seconds: float, troubles: int) -> None:
    noise: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(str(context)[:300]))
    seeds = list(range(first, last))
    fresh: list[float] = []
    bad: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(number * 0.37)
        while seeds:
            seed = seeds.pop(0)
            plan = draw(seed, seconds, troubles)
            outcome, found = await run(plan, seed, seconds=seconds, timing=PATIENT)
            after = outcome.fresh_after
            fresh.append(after if after is not None else 999)
            if found or after is None or after > 15 or (outcome.settled_after or 99) > 20:
                bad.append(seed)
                sys.stdout.write(
                    f"{seed}: {len(outcome.stored)} candles, fresh after {after}, settled {outcome.settled_after}, "
                    f"refused {outcome.refused}, {len(found)} wrong {found[:3]}\n   off {plan.clock_off_ms}"
                    f" {outcome.state}\n"
                    + "".join(f"      {ill.start:6.1f}-{ill.end:5.1f} {ill.kind} {ill.options}\n" for ill in plan.ills)
                )
                sys.stdout.flush()

    await asyncio.gather(*(work(number) for number in range(beside)))
    fresh.sort()
    sys.stdout.write(f"{len(fresh)} plans, bad {bad}, fresh after: median {fresh[len(fresh) // 2]:.1f},")
    sys.stdout.write(f" p95 {fresh[int(len(fresh) * 0.95)]:.1f}, max {fresh[-1]:.1f} s; noise {len(noise)}\n")
    for line in sorted(set(noise))[:20]:
        sys.stdout.write(line + "\n")


def main(arguments: Sequence[str]) -> None:
    """Run seeds ``FIRST LAST BESIDE SECONDS TROUBLES`` and print those that end wrong."""
    first, last, beside, seconds, troubles = (int(word) for word in arguments)
    asyncio.run(many(first, last, beside, seconds, troubles))


if __name__ == "__main__":
    main(sys.argv[1:])
