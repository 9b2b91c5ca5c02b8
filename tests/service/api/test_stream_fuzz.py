"""The WebSocket against everything: a model of what each client must have been told, and raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import struct
from typing import Any

import pytest
import websockets
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from websockets.asyncio.client import connect

from service.api.stream import parse_client_frame
from tests.builders import MARKET
from tests.service.api.conftest import World, serving
from tests.service.api.test_sockets import raw_socket, upgrade
from tests.support.asgi_socket import AsgiSocket, settle
from tests.support.eventually import eventually

KINDS = ("prediction", "step", "event")
OTHER = "binance:BTC/USDT"


class Client:
    """A client and what it was told: every number from where it began must be told, missed, or unwanted."""

    def __init__(self, socket: AsgiSocket, begins_after: int, kinds: tuple[str, ...], market: str | None) -> None:
        self.socket = socket
        self.position = begins_after
        self.kinds = kinds
        self.market = market
        self.greeted = False

    def wants(self, kind: str, market: str) -> bool:
        return (not self.kinds or kind in self.kinds) and self.market in (None, market)


class Stream(RuleBasedStateMachine):
    """Clients come, read, send and leave while frames are published."""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.world = World()
        self.world.markets[OTHER] = self.world.market
        self.app = self.world.app
        self.published: dict[int, tuple[str, str]] = {}
        self.clients: list[Client] = []

    @rule(kind=st.sampled_from(KINDS), market=st.sampled_from([MARKET, OTHER]), count=st.integers(1, 12))
    def publish(self, kind: Any, market: str, count: int) -> None:
        async def act() -> None:
            for _ in range(count):
                self.published[self.world.broadcaster.publish(kind, market, {"detail": {}})] = (kind, market)
            await settle()

        self.runner.run(act())

    @rule(
        behind=st.none() | st.integers(0, 90),
        kinds=st.lists(st.sampled_from(KINDS), max_size=2, unique=True),
        market=st.sampled_from([None, MARKET, OTHER]),
    )
    def connect(self, behind: int | None, kinds: list[str], market: str | None) -> None:
        last = self.world.broadcaster.last_seq
        after = None if behind is None else last - behind
        query = {"after": after, "kinds": ",".join(kinds) or None, "market": market}
        text = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
        socket = AsgiSocket(self.app, text)
        self.runner.run(socket.open())
        self.clients.append(Client(socket, last if after is None else after, tuple(kinds), market))

    @rule(which=st.integers(0, 9))
    def read(self, which: int) -> None:
        for client in self.clients[which : which + 1]:
            self.check(client, client.socket.frames())
            self.runner.run(settle())

    @rule(which=st.integers(0, 9))
    def ping(self, which: int) -> None:
        for client in self.clients[which : which + 1]:
            self.runner.run(client.socket.send('{"type":"ping"}'))
            assert client.socket.close_code is None

    @rule(which=st.integers(0, 9), junk=st.text() | st.binary())
    def junk(self, which: int, junk: str | bytes) -> None:
        for client in self.clients[which : which + 1]:
            text, data = (junk, None) if isinstance(junk, str) else (None, junk)
            self.runner.run(client.socket.send(text, data))
            # A receiver that waits for room to answer an earlier ping sees this frame when the client reads again.
            for _ in range(100):
                client.socket.frames()
                self.runner.run(settle(10))
                if client.socket.over:
                    break
            assert client.socket.close_code == 1008
            self.clients.remove(client)

    @rule(which=st.integers(0, 9))
    def leave(self, which: int) -> None:
        for client in self.clients[which : which + 1]:
            self.runner.run(client.socket.leave())
            for _ in range(100):
                client.socket.frames()
                self.runner.run(settle(10))
                if client.socket.over:
                    break
            assert client.socket.over
            self.clients.remove(client)

    @invariant()
    def every_client_is_counted(self) -> None:
        if hasattr(self, "world"):
            assert self.world.broadcaster.subscribers == len(self.clients) == self.app.state.sockets.open

    def check(self, client: Client, frames: list[dict[str, Any]]) -> None:
        for frame in frames:
            if frame["type"] == "hello":
                assert not client.greeted
                client.greeted = True
            elif frame["type"] == "missed":
                assert client.greeted
                assert client.position < frame["from"] <= frame["to"]
                self.assert_unwanted(client, frame["from"])
                client.position = frame["to"]
            elif frame["type"] != "pong":
                assert client.wants(frame["type"], frame["market"])
                self.assert_unwanted(client, frame["seq"])
                client.position = frame["seq"]

    def assert_unwanted(self, client: Client, until: int) -> None:
        """What was passed over between the last number told and this one must not have been wanted."""
        for seq in range(client.position + 1, until):
            assert seq not in self.published or not client.wants(*self.published[seq]), seq

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        for client in self.clients:
            for _ in range(300):
                self.check(client, client.socket.frames())
                if client.position >= self.last_wanted(client):
                    break
                self.runner.run(settle(5))
            assert client.position >= self.last_wanted(client)
        self.runner.run(self.shut_down())
        self.runner.close()

    def last_wanted(self, client: Client) -> int:
        """The newest number this client must end at, missed or told."""
        wanted = [seq for seq, what in self.published.items() if client.wants(*what)]
        return max(wanted, default=0)

    async def shut_down(self) -> None:
        await self.world.broadcaster.close()
        await settle()
        assert all(client.socket.close_code == 1001 for client in self.clients)
        assert self.world.broadcaster.subscribers == 0


def model(examples: int) -> None:
    quick = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Stream, settings=quick)  # type: ignore[no-untyped-call]


def test_every_client_is_told_everything_it_wants_or_that_it_missed_it() -> None:
    model(30)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_thousand_times_every_client_is_told_everything() -> None:
    model(2000)


# --- raw bytes ------------------------------------------------------------------------------------------------------


def any_frame(chance: random.Random) -> bytes:
    """Make a frame with any opcode, flags, masking and length, honest or not."""
    if chance.random() < 0.5:
        return frame(0x81, b'{"type":"ping"}')  # A good one, so that connections live on.
    payload = chance.randbytes(chance.choice([0, 1, 2, 8, 125, 126, 300]))
    if chance.random() < 0.3:
        payload = chance.choice([b"\xff", b"null", b"[" * 200, b'{"type":"\\u0000"}', b'{"type":"auth","ticket":""}'])
    first = chance.choice([0x81, 0x82, 0x88, 0x89, 0x8A, 0x80, 0x01, chance.randrange(256)])
    length = len(payload) if chance.random() < 0.9 else chance.randrange(1 << 16)
    head = bytes([first, 0x80 | length]) if length < 126 else bytes([first, 0x80 | 126]) + struct.pack("!H", length)
    return head + b"\0\0\0\0" + payload


def frame(first: int, payload: bytes) -> bytes:
    """Make a short masked frame."""
    return bytes([first, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


async def raw_frames(world: World, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Send frames until a connection is closed, then open the next, until ``count`` were sent."""
    chance = random.Random(0)
    caplog.set_level(logging.WARNING)
    loop = asyncio.get_running_loop()
    async with serving(world) as address:
        sent = 0
        while sent < count:
            with raw_socket(address) as raw, contextlib.suppress(ConnectionError):
                await upgrade(raw, address)
                for _ in range(20):
                    await loop.sock_sendall(raw, any_frame(chance))
                    sent += 1
        await eventually(lambda: world.broadcaster.subscribers == 0 and not world.connections())
        assert world.app.state.sockets.open == 0
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("sent", [frame(0x81, b"\xff"), frame(0x01, b"\xe2") + frame(0x80, b"\xff")])
async def test_text_that_is_not_utf_8_closes_without_a_traceback(
    world: World, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with serving(world) as address, connect(f"ws://{address}/ws") as client:
        await client.recv()
        client.transport.write(sent)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await client.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert not caplog.records


async def test_a_pong_to_a_client_that_is_being_closed_is_no_bug(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(world) as address:
        with raw_socket(address) as raw:
            await upgrade(raw, address)
            await asyncio.get_running_loop().sock_sendall(raw, frame(0x81, b'{"type":"ping"}') + frame(0x81, b"\xff"))
            await eventually(lambda: world.broadcaster.subscribers == 0 and not world.connections())
    assert not [record for record in caplog.records if record.exc_info]


async def test_raw_frames_leave_no_traceback_and_no_handler(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await raw_frames(world, 600, caplog)


@pytest.mark.slow
@pytest.mark.timeout(3000)
async def test_a_hundred_thousand_raw_frames_leave_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = len(os.listdir("/proc/self/fd"))
    await raw_frames(world, 100_000, caplog)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize(
    "text",
    ["", "\ud800", '{"type":"ping"} ', '{"type":"ping","type":"ping"}', '{"type":["ping"]}', "1e999", "[" * 5000, "\0"],
)
def test_the_parser_of_client_frames_takes_anything(text: str) -> None:
    parsed = parse_client_frame(text)
    assert parsed is None or parsed == {"type": "ping"}
