"""ExchangeClock: the exchange's time, measured now and then, and run on locally in between."""

from __future__ import annotations

import time
from collections.abc import Sequence

_DENSE_SLACK_MS = 2_000
_SPARSE_SLACK_MS = 30_000


class ExchangeClock:
    """Tells the exchange's time in UTC ms, wall time until it is set. ``speed`` as in FeedTiming."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed
        self._set_ms = time.time() * 1_000
        self._set_at = time.monotonic()

    def now_ms(self) -> float:
        return self._set_ms + (time.monotonic() - self._set_at) * 1_000 * self._speed

    def elapsed_ms(self) -> float:
        """Return a time that never jumps, in milliseconds of the exchange's pace."""
        return time.monotonic() * 1_000 * self._speed

    def set(self, now_ms: float) -> None:
        self._set_ms, self._set_at = now_ms, time.monotonic()


def judge_time(
    server_ms: float | None, ours_ms: Sequence[float], newest_open: int | None, interval_ms: int, *, dense: bool
) -> float:
    """Decide what time it is at the exchange from its own clock, ours, and its newest candle.

    Any of them may be wrong: an exchange's clock can be off while its candles are right, ours can be off or have been
    set, and a halted market has only old candles. The first clock that agrees with the newest candle wins, else the
    middle of the exchange's, the first of ours and the candle. ``dense``: the exchange has a candle for every
    interval, so the newest one is young.
    """
    clocks = [server_ms, *ours_ms] if server_ms is not None else list(ours_ms)
    if newest_open is None:
        return clocks[0]
    slack_ms = _DENSE_SLACK_MS if dense else _SPARSE_SLACK_MS
    for clock in clocks:
        if newest_open - slack_ms <= clock <= newest_open + interval_ms + slack_ms:
            return clock
    if server_ms is None:
        return max(ours_ms[0], float(newest_open))
    return sorted((server_ms, ours_ms[0], float(newest_open)))[1]
