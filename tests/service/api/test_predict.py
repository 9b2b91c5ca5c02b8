"""GET and POST /predict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import isfinite
from typing import Any

import httpx
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.candle import Candle
from models.config import LearnerConfig
from models.learner import Learner
from models.records import Prediction
from service.ports import LearnerUnavailable
from tests.builders import MARKET, START, make_candle, make_prediction
from tests.service.api.conftest import World
from tests.support.fake_market import FakeMarket


def rows(count: int = 3) -> list[list[Any]]:
    return [[START + index * 1000, 250.0, 251, 249.5, 250.5, 0] for index in range(count)]


async def test_the_latest_prediction_is_told(client: httpx.AsyncClient) -> None:
    answer = await client.get("/predict")
    assert answer.status_code == 200
    assert answer.json() == orjson.loads(orjson.dumps(make_prediction(1)))


async def test_the_next_prediction_replaces_the_one_before(client: httpx.AsyncClient, world: World) -> None:
    await client.get("/predict")
    world.market.latest = make_prediction(2, close=251.0)
    assert (await client.get("/predict", params={"market": MARKET})).json()["close"] == 251.0


@pytest.mark.parametrize("phase", ["starting", "warming_up", "stale", "stopped"])
async def test_while_not_live_it_says_why_and_when_to_come_again(
    client: httpx.AsyncClient, world: World, phase: Any
) -> None:
    world.market.becomes(phase=phase, reason="the feed is 7 s old")
    answer = await client.get("/predict")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["detail"] == "the feed is 7 s old"


async def test_given_candles_are_predicted_with_the_current_weights(client: httpx.AsyncClient, world: World) -> None:
    answer = await client.post("/predict", json={"candles": rows(3)})
    assert answer.status_code == 200
    assert answer.json()["open_time"] == START + 3000
    assert [candle.close for candle in world.market.previewed[0]] == [250.5] * 3


async def test_ten_thousand_candles_are_taken_and_one_more_is_not(client: httpx.AsyncClient) -> None:
    assert (await client.post("/predict", json={"candles": rows(10_000)})).status_code == 200
    assert (await client.post("/predict", json={"candles": rows(10_001)})).status_code == 422


def changed(index: int, column: int, value: Any) -> list[list[Any]]:
    candles = rows(3)
    candles[index][column] = value
    return candles


@pytest.mark.parametrize(
    ("candles", "says"),
    [
        (rows(1), "2 to 10000"),
        ("none", "2 to 10000"),
        ([*rows(2), rows(5)[4]], "candles.2: open_time does not follow"),
        (rows(2)[::-1], "candles.1: open_time does not follow"),
        (changed(1, 0, START + 1000.0), "candles.1: open_time must be a whole number"),
        (changed(1, 0, True), "candles.1: open_time must be a whole number"),
        (changed(1, 0, -5), "candles.1: open_time must be UTC milliseconds"),
        (changed(2, 1, "250"), "candles.2: prices and volume must be numbers"),
        (changed(2, 1, True), "candles.2: prices and volume must be numbers"),
        (changed(2, 1, None), "candles.2: prices and volume must be numbers"),
        (changed(2, 2, 10.0), "candles.2: low <= open, close <= high does not hold"),
        (changed(0, 3, 0), "candles.0: prices must be above 0"),
        (changed(0, 5, -1), "candles.0: volume must not be below 0"),
        ([*rows(2), [1, 2]], "candles.2: a row of 6 numbers"),
        ([*rows(2), {"open": 1}], "candles.2: a row of 6 numbers"),
    ],
)
async def test_wrong_candles_are_refused_with_the_place(client: httpx.AsyncClient, candles: Any, says: str) -> None:
    answer = await client.post("/predict", json={"candles": candles})
    assert answer.status_code == 422
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"null", b'{"candles":[],"x":1}', b'{"market":5,"candles":[[],[]]}', b""]
)
async def test_another_shape_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    assert (await client.post("/predict", content=body)).status_code == 422


async def test_a_learner_that_is_starting_again_answers_503(client: httpx.AsyncClient, world: World) -> None:
    world.market.failure = LearnerUnavailable("the learner is starting", retry_after_seconds=9)
    answer = await client.post("/predict", json={"candles": rows()})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "9")


async def test_an_unknown_market_is_not_found(client: httpx.AsyncClient) -> None:
    assert (await client.get("/predict", params={"market": "binance:BTC/USDT"})).status_code == 404
    answer = await client.post("/predict", json={"market": "binance:BTC/USDT", "candles": rows()})
    assert answer.status_code == 404
    assert "BTC" not in answer.text


async def test_without_a_market_yet_it_says_starting(client: httpx.AsyncClient, world: World) -> None:
    world.markets.clear()
    assert (await client.get("/predict")).status_code == 503


# --- absurd magnitudes, to the real learner -------------------------------------------------------------------------

ABSURD = st.sampled_from(
    [5e-324, 1e-320, 2.3e-308, 1e-200, 1e-15, 1.0, 250, 1e15, 1e155, 1e300, 1.7976931348623157e308]
)
VOLUMES = st.one_of(st.just(0), ABSURD)


@st.composite
def absurd_rows(draw: st.DrawFn) -> list[list[Any]]:
    values = st.sampled_from(draw(st.lists(ABSURD, min_size=1, max_size=4)))
    last = draw(st.sampled_from([1, START, 2**53 - 1]))
    count = draw(st.integers(2, 30)) if last > 1 else 2
    made = []
    for index in range(count):
        low, first, second, high = sorted(draw(st.tuples(values, values, values, values)))
        prices = draw(st.sampled_from([(first, high, low, second), (second, high, low, first)]))
        made.append([last - 1000 * (count - 1 - index) if last > 1 else last + 1000 * index, *prices, draw(VOLUMES)])
    return made


class LearnedMarket(FakeMarket):
    """Previews come from a real learner that has seen ordinary candles."""

    def __init__(self) -> None:
        super().__init__()
        self.learner = Learner(LearnerConfig(market=self.market, tick=0.01))
        torch.set_num_threads(1)
        for index in range(40):
            candle = make_candle(index)
            self.learner.predict(candle, 0)
            self.learner.learn(candle)

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        return self.learner.preview(candles, START)


@pytest.fixture(scope="module")
def learned() -> LearnedMarket:
    return LearnedMarket()


def test_absurd_magnitudes_get_a_finite_answer_or_422(learned: LearnedMarket) -> None:
    world = World(market=learned)

    @settings(max_examples=150, deadline=None, database=None)
    @given(absurd_rows())
    def ask(candles: list[list[Any]]) -> None:
        answer = asyncio.run(post(world, candles))
        assert answer.status_code == 200
        said = answer.json()
        assert all(isfinite(said[name]) for name in ("p_down", "p_flat", "p_up", "close"))
        assert said["p_down"] + said["p_flat"] + said["p_up"] == pytest.approx(1)
        assert 0 <= said["close_low"] <= said["close"] <= said["close_high"]

    ask()


async def post(world: World, candles: list[list[Any]]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://test") as client:
        return await client.post("/predict", json={"candles": candles})
