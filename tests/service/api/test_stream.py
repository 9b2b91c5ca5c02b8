"""The WebSocket, over a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from tests.builders import MARKET
from tests.service.api.conftest import World


async def read(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(5):
        return [json.loads(await socket.recv()) for _ in range(count)]


async def test_hello_comes_first_then_frames_as_they_are_published(address: str, world: World) -> None:
    async with connect(f"ws://{address}/ws") as socket:
        [hello] = await read(socket, 1)
        assert hello == {"type": "hello", "protocol": 1, "seq": 1000, "markets": [MARKET]}
        world.publish(0)
        prediction, step = await read(socket, 2)
    assert (prediction["type"], prediction["seq"], step["type"], step["seq"]) == ("prediction", 1001, "step", 1002)
    assert prediction["candle"]["open_time"] + 1000 == prediction["prediction"]["open_time"]
    assert step["step"]["loss"] == 1.0
    assert step["score"] == {"accuracy": 0.5}


async def test_a_ping_is_answered(address: str) -> None:
    async with connect(f"ws://{address}/ws") as socket:
        await socket.send('{"type":"ping"}')
        assert {frame["type"] for frame in await read(socket, 2)} == {"hello", "pong"}


@pytest.mark.parametrize(
    "frame", ["{}", '{"type":"ping","x":1}', '{"type":"auth","ticket":"x"}', "ping", "", "[1]", b"\x00", "NaN", "\0"]
)
async def test_any_other_client_frame_closes_with_1008(address: str, frame: str | bytes) -> None:
    async with connect(f"ws://{address}/ws") as socket:
        await read(socket, 1)
        await socket.send(frame)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await read(socket, 1)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_after_replays_what_is_kept_and_goes_on_without_loss_or_doubling(address: str, world: World) -> None:
    for index in range(10):
        world.publish(index)
    async with connect(f"ws://{address}/ws?after=1013") as socket:
        await read(socket, 1)
        world.publish(10)
        frames = await read(socket, 9)
    assert [frame["seq"] for frame in frames] == list(range(1014, 1023))


async def test_after_a_number_no_longer_kept_the_loss_is_told(address: str, world: World) -> None:
    for index in range(40):
        world.publish(index)
    async with connect(f"ws://{address}/ws?after=1003") as socket:
        _, missed, first, *_ = await read(socket, 66)
    assert (missed["type"], missed["from"], missed["to"]) == ("missed", 1004, 1016)
    assert first["seq"] == 1017


async def test_kinds_and_market_choose_frames(address: str, world: World) -> None:
    async with connect(f"ws://{address}/ws?kinds=step,event&market={MARKET}") as socket:
        await read(socket, 1)
        world.publish(0)
        world.broadcaster.publish("event", "other:X/Y", {"kind": "gap", "detail": {}})
        world.broadcaster.publish("event", MARKET, {"kind": "gap", "detail": {"start": 1}})
        step, event = await read(socket, 2)
    assert (step["type"], event["type"], event["detail"]) == ("step", "event", {"start": 1})


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("kinds=trades", 422),
        ("after=x", 422),
        ("after=-1", 422),
        ("after=99999999999999999", 422),
        ("market=binance:BTC/USDT", 404),
        ("market=%00", 404),
        ("token=1", 422),
    ],
)
async def test_a_wrong_query_is_refused_at_the_handshake(address: str, query: str, status: int) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(f"ws://{address}/ws?{query}")
    assert refused.value.response.status_code == status
    assert refused.value.response.headers["content-type"] == "application/problem+json"


async def test_shutdown_closes_with_1001(address: str, world: World) -> None:
    async with connect(f"ws://{address}/ws") as socket:
        await read(socket, 1)
        await world.broadcaster.close()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await read(socket, 1)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
