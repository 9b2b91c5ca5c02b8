"""GET /health/live and /health/ready."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from service.api import health
from tests.builders import MARKET
from tests.service.api.conftest import World


async def test_live_says_only_that(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health/live")
    assert (answer.status_code, answer.json()) == (200, {"status": "live"})


@pytest.mark.parametrize("path", ["/", "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"])
async def test_probes_may_ask_by_head(address: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


async def test_head_says_not_ready_too(client: httpx.AsyncClient, world: World) -> None:
    world.market.becomes(learner_alive=False)
    assert (await client.head("/health/ready")).status_code == 503


async def test_ready_when_everything_is_in_order(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health/ready")
    assert answer.status_code == 200
    assert set(answer.json()["checks"].values()) == {"ok"}


async def test_not_ready_without_the_database_but_still_live(client: httpx.AsyncClient, world: World) -> None:
    world.store.unavailable = "gone"
    answer = await client.get("/health/ready")
    assert answer.status_code == 503
    assert "database: does not answer" in answer.json()["detail"]
    assert (await client.get("/health/live")).status_code == 200


async def test_a_database_that_hangs_counts_as_away(
    client: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PING_SECONDS", 0.01)
    monkeypatch.setattr(world.store, "ping", asyncio.Event().wait)
    assert (await client.get("/health/ready")).json()["checks"]["database"] == "does not answer"


async def test_not_ready_while_warming_up_with_the_reason(client: httpx.AsyncClient, world: World) -> None:
    world.market.becomes(phase="warming_up", reason="10 of 3600 candles learned")
    answer = await client.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["checks"][f"{MARKET} predictions"] == "10 of 3600 candles learned"


async def test_not_ready_while_the_learner_is_away(client: httpx.AsyncClient, world: World) -> None:
    world.market.becomes(learner_alive=False)
    assert (await client.get("/health/ready")).status_code == 503


async def test_not_ready_before_the_first_market(client: httpx.AsyncClient, world: World) -> None:
    world.markets.clear()
    assert (await client.get("/health/ready")).status_code == 503
