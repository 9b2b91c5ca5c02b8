"""``python -m tests.support.failpoints POINT COUNT serve``: the real command, killed with SIGKILL at one exact instant.

POINT names the instant, COUNT the how-many-eth time it is reached. Nothing of this is in the product.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from alembic.operations import Operations

from service.cli import main
from service.pipeline import MarketPipeline
from service.storage import SqlCheckpointStore, SqlRecordStore, checkpoints, records

POINTS = (
    "before-write",
    "inside-write",
    "after-write",
    "before-checkpoint",
    "inside-checkpoint",
    "after-checkpoint",
    "after-publish",
    "inside-migration",
)


class Fuse:
    """Kills this process the ``count``-th time it burns."""

    def __init__(self, count: int) -> None:
        self._left = count

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, fuse: Fuse) -> None:
    """Put the fuse at the point."""
    if point == "before-write":
        SqlRecordStore.write = _before(SqlRecordStore.write, fuse)  # type: ignore[method-assign]
    elif point == "inside-write":
        records.insert_new = _after(records.insert_new, fuse)
    elif point == "after-write":
        SqlRecordStore.write = _after(SqlRecordStore.write, fuse)  # type: ignore[method-assign]
    elif point == "before-checkpoint":
        SqlCheckpointStore.save = _before(SqlCheckpointStore.save, fuse)  # type: ignore[method-assign]
    elif point == "inside-checkpoint":
        checkpoints.forget_old = _after(checkpoints.forget_old, fuse)
    elif point == "after-checkpoint":
        SqlCheckpointStore.save = _after(SqlCheckpointStore.save, fuse)  # type: ignore[method-assign]
    elif point == "after-publish":
        publish = MarketPipeline._publish_prediction
        MarketPipeline._publish_prediction = _then(publish, fuse)  # type: ignore[method-assign]
    elif point == "inside-migration":
        Operations.create_table = _then(Operations.create_table, fuse)  # type: ignore[method-assign]
    else:
        raise SystemExit(f"unknown point {point}; choose one of {', '.join(POINTS)}")


def _before(call: Callable[..., Awaitable[Any]], fuse: Fuse) -> Callable[..., Awaitable[Any]]:
    async def armed(*args: Any, **keywords: Any) -> Any:
        fuse.burn()
        return await call(*args, **keywords)

    return armed


def _after(call: Callable[..., Awaitable[Any]], fuse: Fuse) -> Callable[..., Awaitable[Any]]:
    async def armed(*args: Any, **keywords: Any) -> Any:
        result = await call(*args, **keywords)
        fuse.burn()
        return result

    return armed


def _then(call: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
    def armed(*args: Any, **keywords: Any) -> Any:
        result = call(*args, **keywords)
        fuse.burn()
        return result

    return armed


if __name__ == "__main__":
    arm(sys.argv[1], Fuse(int(sys.argv[2])))
    raise SystemExit(main(sys.argv[3:]))
