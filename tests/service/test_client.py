"""The Python client against the API it is for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from service.api.sockets import server_config
from service.client import ApiError, AsyncClient, Client
from service.client_frames import EventFrame, Frame, Missed, PredictionFrame, StepFrame, parse_step
from tests.builders import MARKET, at, make_batch, make_candle, make_prediction, make_step
from tests.service.api.conftest import KEY, World, serving


@pytest.fixture
def world() -> World:
    return World().set(api_keys=(KEY,))


@pytest.fixture
async def client(world: World) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://test", KEY, httpx.ASGITransport(world.app)) as opened:
        yield opened


async def test_records_come_back_as_they_were_made(client: AsyncClient, world: World) -> None:
    await world.fill(25)
    batch = make_batch(0, 25)
    assert await client.predict() == world.market.latest
    assert [candle async for candle in client.candles()] == batch.candles
    assert [prediction async for prediction in client.predictions(MARKET)] == batch.predictions
    assert [step async for step in client.steps(start=at(3), end=at(5))] == batch.steps[3:5]


async def test_own_candles_are_predicted_from_records_or_rows(client: AsyncClient) -> None:
    candles = [make_candle(0), make_candle(1)]
    rows = [(c.open_time, c.open, c.high, c.low, c.close, c.volume) for c in candles]
    assert (await client.predict_candles(candles)).open_time == at(2)
    assert (await client.predict_candles(rows, MARKET)).open_time == at(2)


async def test_operating_and_asking(client: AsyncClient, world: World) -> None:
    assert (await client.operate("pause"))["paused"]
    assert (await client.markets())[0]["paused"]
    assert (await client.score(window=300, live=True))["verdict"] == "undecided"
    assert world.market.scored == [(300, True)]
    assert (await client.model())["device"] == "cpu"


async def test_a_problem_is_an_error_that_says_when_to_come_again(client: AsyncClient, world: World) -> None:
    world.market.becomes(phase="warming_up", reason="10 of 3600 candles learned")
    with pytest.raises(ApiError, match="10 of 3600") as refused:
        await client.predict()
    assert (refused.value.status, refused.value.retry_after) == (503, 2)


async def test_the_plain_client_speaks_the_same_calls(world: World) -> None:
    await world.fill(3)

    def use(address: str) -> None:
        with Client(f"http://{address}", KEY) as plain:
            assert plain.predict() == world.market.latest
            assert [*plain.candles()] == make_batch(0, 3).candles
            assert [*plain.predictions()] == make_batch(0, 3).predictions
            assert [*plain.steps()] == make_batch(0, 3).steps
            assert plain.markets()[0]["market"] == MARKET
            assert plain.model()["device"] == "cpu"
            assert plain.score()["verdict"] == "undecided"
            assert plain.predict_candles([make_candle(0), make_candle(1)]).open_time == at(2)
            with pytest.raises(ApiError) as refused:
                plain.operate("rollback")
            assert refused.value.status == 409

    async with serving(world) as address:
        await asyncio.to_thread(use, address)


async def take(frames: AsyncIterator[Frame], count: int) -> list[Frame]:
    async with asyncio.timeout(10):
        return [await anext(frames) for _ in range(count)]


async def test_follow_yields_frames_and_goes_on_after_the_last_when_the_service_restarts(world: World) -> None:
    world.publish(0)
    async with serving(world) as address, AsyncClient(f"http://{address}", KEY) as client:
        frames = client.follow(MARKET, kinds=("prediction", "step", "event"), after=1000)
        first, second = await take(frames, 2)
        assert first == PredictionFrame(1001, MARKET, make_candle(0), make_prediction(1))
        assert second == StepFrame(1002, MARKET, make_step(0), {"accuracy": 0.5})
        for connection in world.connections():
            connection.transport.abort()
        world.broadcaster.publish("event", MARKET, {"kind": "gap", "detail": {"start": 1}})
        assert await take(frames, 1) == [EventFrame(1003, MARKET, "gap", {"start": 1})]
        await frames.aclose()  # type: ignore[attr-defined]


async def test_follow_tells_what_was_missed(world: World) -> None:
    for index in range(40):
        world.publish(index)
    async with serving(world) as address, AsyncClient(f"http://{address}", KEY) as client:
        frames = client.follow(after=1003)
        assert await take(frames, 1) == [Missed(1004, 1016)]
        await frames.aclose()  # type: ignore[attr-defined]


async def test_follow_with_a_wrong_key_is_an_error_not_a_loop(world: World) -> None:
    async with serving(world) as address, AsyncClient(f"http://{address}", "wrong") as client:
        with pytest.raises(ApiError) as refused:
            await take(client.follow(), 1)
    assert refused.value.status == 401


def test_members_of_a_newer_service_are_left_aside() -> None:
    data = {name: getattr(make_step(0), name) for name in make_step(0).__slots__} | {"new": 1}
    assert parse_step(data) == make_step(0)


def test_the_server_settings_log_no_query_strings(world: World) -> None:
    config = server_config(world.app)
    assert (config.access_log, config.proxy_headers, config.server_header) == (False, False, False)
