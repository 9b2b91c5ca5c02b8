"""When to try again: backoff with jitter, a budget of dials, and manners that all markets of an exchange share."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from service.feed.timing import FeedTiming
from service.feed.trouble import Trouble


class Backoff:
    """Says how long to wait after each failure in a row, in real seconds, never twice the same."""

    def __init__(self, timing: FeedTiming, jitter: random.Random) -> None:
        self._timing = timing
        self._jitter = jitter
        self.failures = 0

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self, trouble: Trouble) -> float:
        """Count one failure and return the wait after it."""
        self.failures += 1
        timing = self._timing
        if trouble.refused:
            return self._spread(timing.refused_seconds)
        if trouble.limited and trouble.retry_after_seconds is None:
            return self._spread(timing.limited_seconds * min(self.failures, 2))
        asked_for = (trouble.retry_after_seconds or 0.0) / timing.speed
        doubled = min(timing.backoff_limit_seconds, timing.backoff_seconds * 2 ** min(self.failures - 1, 20))
        return max(asked_for + self._jitter.uniform(0, 0.25) / timing.speed, self._spread(doubled))

    def _spread(self, seconds: float) -> float:
        return seconds * self._jitter.uniform(0.8, 1.2)


class DialBudget:
    """Lets at most ``dials_per_window`` dials pass in any ``dial_window_seconds``."""

    def __init__(self, timing: FeedTiming, now: Callable[[], float] = time.monotonic) -> None:
        self._limit = timing.dials_per_window
        self._window = timing.dial_window_seconds
        self._now = now
        self._dials: deque[float] = deque(maxlen=self._limit)

    def wait_seconds(self) -> float:
        """Return how long to wait before the next dial."""
        if len(self._dials) < self._limit:
            return 0.0
        return max(0.0, self._dials[0] + self._window - self._now())

    async def take(self) -> None:
        """Wait for the leave to dial and take it; markets that wait together go one by one."""
        while wait_seconds := self.wait_seconds():  # noqa: ASYNC110 - time passes by itself
            await asyncio.sleep(wait_seconds)
        self._dials.append(self._now())


class Manners:
    """What the feeds of one exchange share here, since it sees one address: dials, its wish for quiet, its markets.

    ``listed`` is the ccxt exchange that has read the list of markets, None before; hold ``listing`` to change it.
    """

    def __init__(self, timing: FeedTiming, now: Callable[[], float] = time.monotonic) -> None:
        self.dials = DialBudget(timing, now)
        self.listed: Any = None
        self.listing = asyncio.Lock()
        self._now = now
        self._quiet_until = float("-inf")

    def keep_quiet(self, seconds: float) -> None:
        """Let nobody ask for so long: the exchange limits our requests."""
        self._quiet_until = max(self._quiet_until, self._now() + seconds)

    def quiet_seconds(self) -> float:
        """Return how long nobody may ask."""
        return max(0.0, self._quiet_until - self._now())
