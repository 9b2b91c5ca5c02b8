"""GET /metrics."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import MARKET, make_step
from tests.service.api.conftest import World
from tests.support.asgi_socket import AsgiSocket


async def samples(client: httpx.AsyncClient) -> dict[tuple[str, tuple[str, ...]], float]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_route_and_status(client: httpx.AsyncClient) -> None:
    await client.get("/steps")
    await client.get("/steps?limit=x")
    found = await samples(client)
    assert found["livewick_http_requests_total", ("GET", "/steps", "200")] == 1
    assert found["livewick_http_requests_total", ("GET", "/steps", "422")] == 1
    assert found["livewick_http_seconds_count", ("/steps",)] == 2


async def test_training_is_counted_from_what_is_published(client: httpx.AsyncClient, world: World) -> None:
    assert world.app
    world.publish(0)
    world.broadcaster.publish("step", MARKET, {"step": make_step(1, skipped="nonfinite", clipped=False), "score": None})
    world.broadcaster.publish("event", MARKET, {"kind": "drift", "detail": {}})
    found = await samples(client)
    assert found["livewick_steps_total", (MARKET,)] == 2
    assert found["livewick_steps_clipped_total", (MARKET,)] == 1
    assert found["livewick_steps_skipped_total", (MARKET, "nonfinite")] == 1
    assert found["livewick_events_total", ("drift", MARKET)] == 1
    assert found["livewick_frames_published_total", ("step",)] == 2
    assert found["livewick_train_ms_count", (MARKET,)] == 2


async def test_markets_are_read_when_asked(client: httpx.AsyncClient, world: World) -> None:
    world.market.becomes(queue_depth=7, checkpoint_age_ms=2500)
    found = await samples(client)
    assert found["livewick_queue_depth", (MARKET,)] == 7
    assert found["livewick_checkpoint_age_seconds", (MARKET,)] == 2.5
    assert found["livewick_phase", (MARKET,)] == 2
    assert found["livewick_feed_age_seconds", (MARKET,)] == 0.3
    assert found["livewick_ws_clients", ()] == 0


async def test_a_loss_that_is_not_known_is_no_sample(client: httpx.AsyncClient, world: World) -> None:
    world.market.becomes(last_step=make_step(0, loss=None))
    assert ("livewick_loss", (MARKET,)) not in await samples(client)


async def test_failures_69_scanners_make_no_series(client: httpx.AsyncClient, world: World) -> None:
    await client.get("/metrics")
    before = len(await samples(client))
    for n in range(500):
        await client.get(f"/scan/{n}")
        await client.get(f"/static/{n}")
    for n in range(50):
        await client.request(f"METHOD{n}", "/predict")
        await client.request(f"METHOD{n}", f"/x{n}")
        await AsgiSocket(world.app, path=f"/ws/{n}").open()
    assert len(await samples(client)) - before <= 5
    assert len((await client.get("/metrics")).content) < 200_000


async def test_failures_71_metrics_need_the_key_where_keys_are_set(client: httpx.AsyncClient, world: World) -> None:
    world.set(api_keys=("k",))
    assert (await client.get("/metrics")).status_code == 401
    assert (await client.get("/health/ready")).status_code == 401
    assert (await client.get("/health/live")).json() == {"status": "live"}
