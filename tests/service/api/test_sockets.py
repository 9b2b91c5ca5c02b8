"""Slow, silent and vanishing clients on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from service.api import protocols, sockets
from service.api.sockets import listen
from service.ports import ConfigurationError
from tests.builders import MARKET
from tests.service.api.conftest import World, serving
from tests.support.eventually import eventually


@contextlib.contextmanager
def raw_socket(address: str, receive_buffer: int = 4096) -> Iterator[socket.socket]:
    """Connect with a small receive buffer, so that not reading is felt soon."""
    host, port = address.split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.connect((host, int(port)))
        raw.setblocking(False)
        yield raw


async def upgrade(raw: socket.socket, address: str, path: str = "/ws") -> None:
    """Do the handshake and read hello, then never again."""
    loop = asyncio.get_running_loop()
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await loop.sock_sendall(raw, request.encode())
    got = b""
    while b'"hello"' not in got:
        got += await loop.sock_recv(raw, 2048)
    assert got.startswith(b"HTTP/1.1 101")


def flood(world: World, count: int, size: int = 20_000) -> None:
    for _ in range(count):
        world.broadcaster.publish("event", MARKET, {"kind": "gap", "detail": {"text": "x" * size}})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same limits, in fractions of a second."""
    monkeypatch.setattr(sockets, "PING_SECONDS", 0.2)
    monkeypatch.setattr(protocols, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(protocols, "HEADER_SECONDS", 0.2)


async def test_failures_39_a_client_that_never_reads_is_cut_off_by_an_abort_not_a_close(world: World) -> None:
    world.set(send_seconds=0.3)
    async with serving(world) as address:
        with raw_socket(address) as raw:
            await upgrade(raw, address)
            flood(world, 8, size=400_000)
            # Sooner than a ping could go unanswered: it is the send that gave up.
            await eventually(lambda: not world.broadcaster.subscribers and not world.connections(), seconds=4)
            assert world.app.state.sockets.open == 0


@pytest.mark.usefixtures("impatient")
async def test_failures_39_a_client_that_does_not_read_is_cut_off_even_while_little_is_sent(world: World) -> None:
    async with serving(world) as address:
        with raw_socket(address) as raw:
            await upgrade(raw, address)
            await eventually(lambda: world.broadcaster.subscribers == 0 and not world.connections())


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_reads_a_byte_now_and_then_is_cut_off(world: World) -> None:
    world.set(send_seconds=0.5)
    async with serving(world) as address:
        with raw_socket(address) as raw:
            await upgrade(raw, address)
            flood(world, 60)

            async def drip() -> None:
                while True:
                    await asyncio.get_running_loop().sock_recv(raw, 1)
                    await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            await eventually(lambda: world.broadcaster.subscribers == 0 and not world.connections())
            dripping.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await dripping


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="TCP_USER_TIMEOUT is of Linux")
async def test_a_client_that_never_reads_its_answer_is_dropped_by_the_kernel_within_15_seconds(world: World) -> None:
    await world.fill(20_000)
    async with serving(world) as address:
        with raw_socket(address) as raw:
            request = f"GET /steps?format=csv HTTP/1.1\r\nHost: {address}\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(raw, request.encode())
            await eventually(world.connections, seconds=5)
            started = asyncio.get_running_loop().time()
            await eventually(lambda: not world.connections(), seconds=20)
            assert 1 < asyncio.get_running_loop().time() - started <= 15


@contextlib.asynccontextmanager
async def followers(address: str, count: int) -> AsyncIterator[list[ClientConnection]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(f"ws://{address}/ws")) for _ in range(count)]


async def test_failures_41_a_stuck_client_does_not_delay_the_others(world: World) -> None:
    async with serving(world) as address, followers(address, 10) as good:
        for follower in good:
            await follower.recv()
        with raw_socket(address) as stuck:
            await upgrade(stuck, address)
            flood(world, 8, size=400_000)
            async with asyncio.timeout(5):
                for follower in good:
                    seqs = [json.loads(await follower.recv())["seq"] for _ in range(8)]
                    assert seqs == list(range(1001, 1009))
            assert world.broadcaster.subscribers == 11


async def test_failures_47_clients_that_leave_between_frames_are_gone_at_once(world: World) -> None:
    async with serving(world) as address:
        for _ in range(5):
            async with followers(address, 20) as good:
                for follower in good:
                    await follower.recv()
                assert world.broadcaster.subscribers == 20
            await eventually(lambda: world.broadcaster.subscribers == 0, seconds=5)
        for _ in range(20):
            with raw_socket(address) as raw:
                await upgrade(raw, address)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await eventually(lambda: world.broadcaster.subscribers == 0 and not world.connections(), seconds=5)
        assert world.app.state.sockets.open == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
async def test_five_thousand_connections_leave_nothing_behind(world: World) -> None:
    async with serving(world) as address:
        before = descriptors(), len(asyncio.all_tasks())
        for _ in range(100):
            async with followers(address, 50) as good:
                for follower in good:
                    await follower.recv()
        await eventually(lambda: (descriptors(), len(asyncio.all_tasks())) == before)
        assert world.broadcaster.subscribers == 0


async def test_failures_43_shutdown_says_1001_to_everyone_and_does_not_wait_for_who_does_not_read(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        service = contextlib.AsyncExitStack()
        address = await service.enter_async_context(serving(world))
        good = await stack.enter_async_context(followers(address, 20))
        for follower in good:
            await follower.recv()
        for _ in range(5):
            stuck = stack.enter_context(raw_socket(address))
            await upgrade(stuck, address)
        flood(world, 8, size=400_000)
        readers = [asyncio.create_task(drain(follower)) for follower in good]
        async with asyncio.timeout(8):
            await service.aclose()
        assert [await reader for reader in readers] == [1001] * 20


async def test_the_server_alone_says_1001_too(world: World) -> None:
    async with serving(world) as address, connect(f"ws://{address}/ws") as follower:
        await follower.recv()
        assert world.server is not None
        world.server.should_exit = True
        assert await drain(follower) == 1001


async def drain(follower: ClientConnection) -> int:
    """Read to the end; return the close code."""
    try:
        while True:
            await follower.recv()
    except websockets.ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 0


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [b"", b"GET /markets HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_request_whose_headers_do_not_arrive_is_dropped(world: World, sent: bytes) -> None:
    async with serving(world) as address:
        with raw_socket(address) as raw:
            await asyncio.get_running_loop().sock_sendall(raw, sent)
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(5):
                    assert await asyncio.get_running_loop().sock_recv(raw, 100) == b""
        await eventually(lambda: not world.connections())


async def test_one_connection_too_many_is_dropped_and_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "most_connections", lambda: 3)
    async with serving(world) as address, followers(address, 3) as good:
        for follower in good:
            await follower.recv()
        with pytest.raises((OSError, websockets.InvalidMessage)):
            await connect(f"ws://{address}/ws")
        await good[0].send('{"type":"ping"}')
        assert json.loads(await good[0].recv())["type"] == "pong"


async def test_a_large_client_frame_is_refused_as_any_other_that_is_not_taken(world: World) -> None:
    async with serving(world) as address, connect(f"ws://{address}/ws") as follower:
        await follower.recv()
        await follower.send("x" * 5000)
        assert await drain(follower) == 1008


def test_a_port_in_use_is_one_clear_line() -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"PORT: {port} on 127.0.0.1 is in use"):
            listen("127.0.0.1", port)


def test_a_host_that_is_no_address_is_one_clear_line() -> None:
    with pytest.raises(ConfigurationError, match="HOST"):
        listen("no such host", 0)
    with pytest.raises(ConfigurationError, match="HOST"):
        listen("192.0.2.1", 0)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="TCP_USER_TIMEOUT is of Linux")
def test_accepted_sockets_inherit_the_limits() -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            timeout = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert timeout == sockets.USER_TIMEOUT_MS
