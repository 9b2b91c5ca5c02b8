"""GET /score."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from service.ports import LearnerUnavailable
from tests.builders import make_step
from tests.service.api.conftest import World
from tests.support.eventually import eventually


async def test_the_default_is_the_whole_run(client: httpx.AsyncClient, world: World) -> None:
    answer = await client.get("/score")
    assert answer.status_code == 200
    assert answer.json()["verdict"] == "undecided"
    assert world.market.scored == [(None, False)]


async def test_window_and_live_are_passed_on(client: httpx.AsyncClient, world: World) -> None:
    await client.get("/score", params={"window": 300, "live": "true"})
    assert world.market.scored == [(300, True)]


async def test_a_fading_score_is_asked_for_by_that_name(client: httpx.AsyncClient, world: World) -> None:
    answer = await client.get("/score?window=fading")
    assert (answer.status_code, answer.json()["window"]) == (200, "fading")
    assert world.market.scored == [("fading", False)]


async def test_a_number_that_is_not_finite_is_null(client: httpx.AsyncClient) -> None:
    assert (await client.get("/score")).json()["model"]["log_loss"] is None


@pytest.mark.parametrize(
    "query", ["window=0", "window=14401", "window=-1", "window=ALL", "window=", "live=1", "live=yes"]
)
async def test_a_wrong_query_is_refused(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.get(f"/score?{query}")).status_code == 422


async def test_the_longest_window_is_taken(client: httpx.AsyncClient) -> None:
    assert (await client.get("/score?window=14400")).status_code == 200


async def test_many_callers_ask_the_learner_once_per_candle(client: httpx.AsyncClient, world: World) -> None:
    world.market.may_answer.clear()
    calls = [asyncio.create_task(client.get("/score")) for _ in range(10)]
    await asyncio.sleep(0)
    world.market.may_answer.set()
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
    await client.get("/score")
    assert len(world.market.scored) == 1
    world.market.becomes(last_step=make_step(1))
    await client.get("/score")
    assert len(world.market.scored) == 2


async def test_a_failure_is_not_kept(client: httpx.AsyncClient, world: World) -> None:
    world.market.failure = LearnerUnavailable("starting")
    assert (await client.get("/score")).status_code == 503
    world.market.failure = None
    assert (await client.get("/score")).status_code == 200


async def test_a_caller_who_leaves_does_not_take_the_answer_from_the_others(
    client: httpx.AsyncClient, world: World
) -> None:
    world.market.may_answer.clear()
    leaver, stayer = (asyncio.create_task(client.get("/score")) for _ in range(2))
    await eventually(lambda: bool(world.app.state.scores._answers))
    leaver.cancel()
    world.market.may_answer.set()
    assert (await stayer).status_code == 200


async def test_after_a_rollback_the_score_is_asked_for_again(client: httpx.AsyncClient, world: World) -> None:
    await client.get("/score")
    await client.get("/score")
    assert len(world.market.scored) == 1
    await client.post("/model/rollback")
    await client.get("/score")
    assert len(world.market.scored) == 2
