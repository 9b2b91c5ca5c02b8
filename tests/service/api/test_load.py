"""Many good clients beside many bad ones, against a service in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator

import psutil
import pytest
from websockets.asyncio.client import connect

from tests.service.api.test_sockets import drain, followers, raw_socket, upgrade
from tests.support.eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GOOD, SILENT, DRIPPING = 200, 50, 20


class Loaded:
    """A running service: where it is, and its process as the system sees it."""

    def __init__(self, address: str, child: asyncio.subprocess.Process) -> None:
        self.address = address
        self.child = child
        self.process = psutil.Process(child.pid)

    def open_sockets(self) -> int:
        return len([c for c in self.process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED])


@pytest.fixture
async def loaded() -> AsyncIterator[Loaded]:
    command = [sys.executable, "-m", "tests.service.api.load_service"]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert child.stdout is not None
    try:
        yield Loaded((await child.stdout.readline()).decode().strip(), child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def test_failures_41_good_clients_are_quick_beside_bad_ones_which_are_gone_in_15_seconds(
    loaded: Loaded,
) -> None:
    delays: list[float] = []

    async def follow() -> None:
        async with connect(f"ws://{loaded.address}/ws") as client:
            async for text in client:
                frame = json.loads(text)
                if frame["type"] == "event":
                    delays.append(time.time() - frame["detail"]["sent"])

    async def drip(raw: socket.socket) -> None:
        while True:
            await asyncio.get_running_loop().sock_recv(raw, 1)
            await asyncio.sleep(1)

    async with asyncio.timeout(120):
        followers = [asyncio.create_task(follow()) for _ in range(GOOD)]
        await eventually(lambda: len(delays) >= GOOD * 4, seconds=60)
        before = loaded.process.memory_info().rss
        with contextlib.ExitStack() as stack:
            bad = [stack.enter_context(raw_socket(loaded.address)) for _ in range(SILENT + DRIPPING)]
            for raw in bad:
                await upgrade(raw, loaded.address)
            drips = [asyncio.create_task(drip(raw)) for raw in bad[:DRIPPING]]
            delays.clear()
            started = time.monotonic()
            # Asked seldom and beside the loop: going through all sockets of the machine would delay our own reading.
            async with asyncio.timeout(20):
                while await asyncio.to_thread(loaded.open_sockets) > GOOD:  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
            gone = time.monotonic() - started
            for task in drips:
                task.cancel()
            await asyncio.gather(*drips, return_exceptions=True)
        assert not [task for task in followers if task.done()]
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    delays.sort()
    p99 = delays[int(len(delays) * 0.99)]
    grown = loaded.process.memory_info().rss - before
    print(f"bad clients gone after {gone:.1f} s; {len(delays)} frames, p99 {p99 * 1000:.0f} ms; +{grown >> 10} KiB")  # noqa: T201
    assert gone <= 15
    assert p99 <= 0.25
    assert grown < 16 << 20


async def test_failures_47_five_thousand_connections_leave_no_descriptor_and_no_memory_behind(loaded: Loaded) -> None:
    async def come_and_go(times: int) -> None:
        for _ in range(times):
            async with followers(loaded.address, 50) as good:
                for follower in good:
                    await follower.recv()
        async with asyncio.timeout(20):
            while loaded.process.num_fds() > before:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    before = loaded.process.num_fds()
    await come_and_go(10)
    warm = loaded.process.memory_info().rss
    await come_and_go(100)
    grown = loaded.process.memory_info().rss - warm
    print(f"5,000 connections: {loaded.process.num_fds() - before:+} descriptors, {grown >> 10:+} KiB")  # noqa: T201
    # The ring of frames kept for late clients fills meanwhile: some 10 KiB a second.
    assert grown < 4 << 20


async def test_failures_43_shutdown_with_200_open_sockets_takes_less_than_8_seconds(loaded: Loaded) -> None:
    async with followers(loaded.address, 200) as good, asyncio.timeout(60):
        for follower in good:
            await follower.recv()
        readers = [asyncio.create_task(drain(follower)) for follower in good]
        assert loaded.child.stdin is not None
        assert loaded.child.stdout is not None
        loaded.child.stdin.write(b"\n")
        seconds = float(await loaded.child.stdout.readline())
        assert {await reader for reader in readers} == {1001}
    print(f"shutdown with 200 open sockets: {seconds:.2f} s")  # noqa: T201
    assert seconds < 8
    assert await loaded.child.wait() == 0
