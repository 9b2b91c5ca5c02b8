"""Timeframes: their length, and those that have none."""

from __future__ import annotations

import pytest

from service.ports import ConfigurationError
from service.settings import load_settings
from service.timeframe import interval_ms_of


@pytest.mark.parametrize(
    ("timeframe", "interval_ms"),
    [("1s", 1_000), ("15m", 900_000), ("4h", 14_400_000), ("1d", 86_400_000), ("2w", 1_209_600_000)],
)
def test_a_timeframe_is_as_long_for_the_settings_as_for_the_feed(timeframe: str, interval_ms: int) -> None:
    assert interval_ms_of(timeframe) == interval_ms
    assert load_settings({"LIVEWICK_TIMEFRAME": timeframe}, None).interval_ms == interval_ms


@pytest.mark.parametrize("timeframe", ["1M", "0s", "s", "", "1 s", "10000s", "1s\n", "-1s"])
def test_a_timeframe_without_a_fixed_length_is_refused(timeframe: str) -> None:
    with pytest.raises(ConfigurationError, match="no fixed length"):
        interval_ms_of(timeframe)
