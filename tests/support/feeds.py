"""A feed that says what a test put into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Self

from models.candle import Candle
from service.ports import CandleFeed, FeedItem, FeedState, FeedStatus
from tests.builders import MARKET


class ScriptedFeed(CandleFeed):
    """Yields the items given, then waits. ``asked`` holds the arguments of each ``stream`` call."""

    def __init__(self, items: Iterable[FeedItem] = (), status: FeedStatus = "live") -> None:
        self.market = MARKET
        self.interval_ms = 1000
        self.tick: float | None = 0.01
        self.status = status
        self.asked: list[tuple[int | None, int, list[int]]] = []
        self._items: asyncio.Queue[FeedItem] = asyncio.Queue()
        self._last: int | None = None
        for item in items:
            self.say(item)

    def say(self, item: FeedItem) -> None:
        """Yield the item next."""
        self._items.put_nowait(item)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def stream(self, after: int | None, backfill: int, recent: Sequence[Candle] = ()) -> AsyncIterator[FeedItem]:
        self.asked.append((after, backfill, [candle.open_time for candle in recent]))
        while True:
            item = await self._items.get()
            if isinstance(item, Candle):
                if after is not None and item.open_time <= after:
                    continue
                self._last = item.open_time
            yield item

    def state(self) -> FeedState:
        return FeedState(exchange="scripted", simulated=True, status=self.status, last_open_time=self._last)
