"""Patience: while a question has no answer, ask it again beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
MOST_BESIDE = 3


class NoAnswer(Exception):
    """None of the questions was answered."""


async def first_answer(
    ask: Callable[[], Coroutine[Any, Any, T]], every_seconds: float, times: int, on_late: Callable[[], None]
) -> T:
    """Ask, again every ``every_seconds`` while no answer came, and return the first answer or raise the first error.

    A dead connection costs one such wait only, and an exchange that takes longer to answer is still heard: at most
    MOST_BESIDE questions are out at once. ``on_late`` is called as often as a wait was in vain. Raises NoAnswer after
    ``times`` of them.
    """
    asked: set[asyncio.Task[T]] = set()
    try:
        for _ in range(times):
            if len(asked) < MOST_BESIDE:
                asked.add(asyncio.create_task(ask(), name="ask the exchange"))
            answered, _ = await asyncio.wait(asked, timeout=every_seconds, return_when=asyncio.FIRST_COMPLETED)
            if answered:
                return min(answered, key=lambda task: task.exception() is not None).result()
            on_late()
        raise NoAnswer(f"nothing came within {times * every_seconds:g} s")
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
