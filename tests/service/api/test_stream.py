"""The WebSocket, over a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog
import websockets
from websockets.asyncio.client import ClientConnection, connect

from service.api import stream
from tests.builders import MARKET
from tests.service.api.conftest import World
from tests.support.eventually import eventually


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
        ("market=", 404),
        ("kinds=", 422),
        ("after=", 422),
        (f"market={MARKET}&market={MARKET}", 422),
        ("token=1", 422),
    ],
)
async def test_a_wrong_query_is_refused_at_the_handshake(
    address: str, query: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    await refuses(address, f"/ws?{query}", status)
    assert not caplog.records, "uvicorn has nothing to complain about"


async def refuses(address: str, path: str, status: int) -> None:
    """Connect in vain: the answer is a problem with the status, and has the headers of every answer."""
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(f"ws://{address}{path}")
    response = refused.value.response
    body = json.loads(bytes(response.body))
    assert (response.status_code, body["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == body["request_id"]
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_socket_to_nowhere_is_not_found(address: str) -> None:
    await refuses(address, "/no-such-socket", 404)


async def test_a_bug_before_the_handshake_is_a_problem_and_after_it_a_close(
    address: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(world.broadcaster, "subscribe", broken)
    with structlog.testing.capture_logs() as logs:
        async with connect(f"ws://{address}/ws") as socket:
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
        monkeypatch.setattr(stream, "parse_wanted", broken)
        await refuses(address, "/ws", 500)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "")
    failed = [line for line in logs if line["log_level"] == "error"]
    assert [line["event"] for line in failed] == ["websocket failed"] * 2


async def test_the_request_id_of_a_socket_is_in_its_handshake_and_its_log_lines(address: str) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        async with connect(f"ws://{address}/ws") as socket:
            await read(socket, 1)
            assert socket.response is not None
            request_id = socket.response.headers["x-request-id"]
        await eventually(lambda: any(line["event"] == "websocket ended" for line in logs))
    assert [line["request_id"] for line in logs if line["event"] == "websocket ended"] == [request_id]


async def test_shutdown_closes_with_1001(address: str, world: World) -> None:
    async with connect(f"ws://{address}/ws") as socket:
        await read(socket, 1)
        await world.broadcaster.close()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await read(socket, 1)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
