"""Waiting for something to become true, instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(is_true: Callable[[], object], seconds: float = 10.0) -> None:
    """Return as soon as ``is_true()`` is; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not is_true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
