"""The wall clock, in the unit every record uses."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time in UTC milliseconds."""
    return time.time_ns() // 1_000_000
