"""A service to load: ``python -m tests.service.api.load_service`` prints HOST:PORT, then publishes 4 frames a second.

Each event frame carries the time it was published, so that a client on this machine can tell how long it took. The
first line on stdin ends it, and it says how many seconds that took.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import structlog

from service.broadcast import Broadcaster
from tests.builders import MARKET
from tests.service.api.conftest import World, serving

PERIOD_SECONDS = 0.25
TEXT = "x" * 1000


async def publish(world: World) -> None:
    while True:
        body = {"kind": "gap", "detail": {"sent": time.time(), "text": TEXT}}
        world.broadcaster.publish("event", MARKET, body)
        await asyncio.sleep(PERIOD_SECONDS)


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    world = World(broadcaster=Broadcaster(first_seq=0))
    async with serving(world) as address:
        print(address, flush=True)  # noqa: T201 - how the parent learns the port
        publishing = asyncio.create_task(publish(world))
        await asyncio.to_thread(sys.stdin.readline)
        publishing.cancel()
        started = time.monotonic()
    print(f"{time.monotonic() - started:.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
