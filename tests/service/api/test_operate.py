"""GET /markets, /model and the operating calls."""

from __future__ import annotations

import httpx
import pytest

from service.ports import LearnerUnavailable
from tests.builders import MARKET, START
from tests.service.api.conftest import World


async def test_markets_tell_feed_state_and_warm_up(client: httpx.AsyncClient, world: World) -> None:
    world.market.becomes(phase="warming_up", reason="100 of 3600 candles learned", warmup_done=100)
    [market] = (await client.get("/markets")).json()["markets"]
    assert (market["market"], market["phase"], market["simulated"]) == (MARKET, "warming_up", True)
    assert market["warmup"] == {"done": 100, "total": 3600}
    assert market["feed"]["age_ms"] == 300


async def test_markets_are_an_empty_list_while_starting(client: httpx.AsyncClient, world: World) -> None:
    world.markets.clear()
    assert (await client.get("/markets")).json() == {"markets": [], "version": "1.2.3", "seq": 1000}


async def test_model_tells_the_network_and_the_checkpoint(client: httpx.AsyncClient) -> None:
    model = (await client.get("/model")).json()
    assert (model["parameters"], model["device"], model["checkpoint_age_ms"]) == (12_345, "cpu", 1500)


async def test_pause_and_resume(client: httpx.AsyncClient, world: World) -> None:
    assert (await client.post("/model/pause")).json() == {"market": MARKET, "paused": True}
    assert world.market.state.paused
    assert (await client.post("/model/resume")).json() == {"market": MARKET, "paused": False}
    assert not world.market.state.paused


async def test_checkpoint_tells_what_was_saved(client: httpx.AsyncClient) -> None:
    answer = await client.post("/model/checkpoint", params={"market": MARKET})
    assert answer.json() == {"market": MARKET, "open_time": START, "step": 7}


async def test_a_rollback_that_cannot_be_is_a_conflict_with_the_reason(client: httpx.AsyncClient) -> None:
    answer = await client.post("/model/rollback")
    assert answer.status_code == 409
    assert answer.json()["detail"] == "there is no earlier checkpoint to go back to"


@pytest.mark.parametrize("call", ["pause", "resume", "checkpoint", "rollback"])
async def test_without_a_learner_operating_answers_503(client: httpx.AsyncClient, world: World, call: str) -> None:
    world.market.failure = LearnerUnavailable("starting", retry_after_seconds=3)
    answer = await client.post(f"/model/{call}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


@pytest.mark.parametrize("call", ["pause", "resume", "checkpoint", "rollback"])
async def test_operating_is_not_done_by_get(client: httpx.AsyncClient, call: str) -> None:
    answer = await client.get(f"/model/{call}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_among_several_markets_one_must_be_named(client: httpx.AsyncClient, world: World) -> None:
    world.markets["binance:BTC/USDT"] = world.market
    assert (await client.get("/model")).status_code == 422
    assert (await client.get("/model", params={"market": MARKET})).status_code == 200
