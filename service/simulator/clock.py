"""The simulated exchange's clock: wall time, or running faster from the moment it was made."""

from __future__ import annotations

import asyncio
import time


class SimulatedClock:
    """Tell the exchange's time in UTC ms; it runs ``speed`` times as fast as the wall and starts at the wall's time."""

    def __init__(self, speed: float = 1.0, start_ms: int | None = None) -> None:
        self.speed = speed
        self._start_ms = float(start_ms if start_ms is not None else time.time_ns() // 1_000_000)
        self._started = time.monotonic()

    def now_ms(self) -> float:
        return self._start_ms + (time.monotonic() - self._started) * 1_000 * self.speed

    def shift(self, by_ms: float) -> None:
        """Make the clock jump."""
        self._start_ms += by_ms

    async def sleep_until(self, time_ms: float) -> None:
        """Return when the clock shows ``time_ms`` or later."""
        while (left := time_ms - self.now_ms()) > 0:  # noqa: ASYNC110 - the clock runs at its own speed
            await asyncio.sleep(left / 1_000 / self.speed)
