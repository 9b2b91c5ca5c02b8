"""Clients that leave in the middle: on uvloop, as the service runs, where a write to a closed connection raises."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import structlog

from service.api import protocols
from tests.service.api.conftest import World, serving
from tests.support.eventually import eventually

uvloop = pytest.importorskip("uvloop")
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    "Sec-WebSocket-Version: 13\r\n"
)


def on_uvloop(test: Callable[[], Awaitable[None]]) -> list[BaseException | str]:
    """Run a coroutine function on a uvloop; return what the loop was told of errors nobody caught."""
    told: list[BaseException | str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context.get("exception") or context["message"])
        )
        await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return told


async def leave_rudely(address: str, request: str, delay: float) -> None:
    """Send, wait a moment, reset the connection without having read anything."""
    host, port = address.split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(request.encode())
    await asyncio.sleep(delay)
    raw = writer.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_clients_that_leave_while_they_are_answered_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def test() -> None:
        await world.fill(3_000)
        async with serving(world) as address:
            for path in ("/predictions?format=csv", "/steps?limit=3000", "/markets"):
                for delay in (0.0, 0.05, 0.1):
                    await leave_rudely(address, f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n" * 30, delay)
            for path in ("/ws", "/nope"):
                for delay in (0.0, 0.0, 0.001, 0.002):
                    await leave_rudely(address, f"GET {path} HTTP/1.1\r\nHost: {address}\r\n{UPGRADE}\r\n", delay)
            assert world.server is not None
            state = world.server.server_state
            await eventually(lambda: not state.connections and not state.tasks)

    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.WARNING):
        assert on_uvloop(test) == []
    assert [line for line in logs if line["log_level"] in ("warning", "error", "critical")] == []
    assert [record.getMessage() for record in caplog.records] == []


def test_a_connection_that_has_gone_by_itself_can_be_reset() -> None:
    world = World()

    async def test() -> None:
        async with serving(world) as address:
            host, port = address.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            await eventually(world.connections)
            [protocol] = world.connections()
            # uvloop keeps what was asked for once, and takes the descriptor out of it at the end.
            assert protocol.transport.get_extra_info("socket").fileno() >= 0
            writer.transport.abort()
            await eventually(lambda: protocol.transport.get_extra_info("socket").fileno() < 0)
            protocols.reset(protocol.transport)

    assert on_uvloop(test) == []
