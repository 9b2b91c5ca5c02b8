"""Timeframes like ``1s``, ``4h``, ``1w``: which there are and how long they last."""

from __future__ import annotations

import re

from service.ports import ConfigurationError

PATTERN = r"^[1-9]\d{0,3}[smhdw]$"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def interval_ms_of(timeframe: str) -> int:
    """Return a timeframe's length; raises ConfigurationError for one without a fixed length, like a month."""
    if re.fullmatch(PATTERN, timeframe) is None:
        raise ConfigurationError(f"timeframe {timeframe!r} has no fixed length; use one like 1s, 1m, 4h or 1d")
    return int(timeframe[:-1]) * _UNIT_MS[timeframe[-1]]
