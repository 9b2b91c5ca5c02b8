"""Pages of other sites: what they may read, ask for, and never do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.security import READING_POSTS
from tests.builders import START
from tests.service.api.conftest import KEY, World
from tests.service.api.test_security import routes
from tests.support.asgi_socket import AsgiSocket

GOOD = "https://good.example"
FOREIGN = (
    "https://evil.example",
    "null",
    "",
    "http://test.evil",
    "http://test:81",
    "ftp://test",
    "test",
    GOOD + ".evil",
)
OWN = ("http://test", "https://test", "HTTP://TEST", "http://test:80", "https://test:443")
OPERATING = ("pause", "resume", "checkpoint", "rollback")
CANDLES = {"candles": [[START - 1000, 1, 1, 1, 1, 1], [START, 1, 1, 1, 1, 1]]}


async def handshake(world: World, **headers: str) -> int:
    """Return the status a WebSocket's handshake is refused with, or 101."""
    socket = AsgiSocket(world.app, headers={"Host": "test", **headers})
    await socket.open()
    if socket.status is None:
        await socket.leave()
    return socket.status or 101


@pytest.fixture(params=[(), (GOOD,)], ids=["none allowed", "one allowed"])
def guarded(world: World, request: pytest.FixtureRequest) -> World:
    return world.set(allowed_origins=request.param)


async def test_pages_of_other_sites_can_neither_follow_nor_change_anything(
    client: httpx.AsyncClient, guarded: World
) -> None:
    posts = [path for method, path in routes(guarded) if method == "POST"]
    assert set(posts) > READING_POSTS
    for origin in FOREIGN:
        assert await handshake(guarded, Origin=origin) == 403, origin
        for path in posts:
            answer = await client.post(path, headers={"Origin": origin, "Sec-Fetch-Site": "same-origin"})
            assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json"), origin
    assert not guarded.market.state.paused


async def test_our_own_page_and_programs_may_do_everything(client: httpx.AsyncClient, guarded: World) -> None:
    asked: list[dict[str, Any]] = [{"Origin": origin} for origin in OWN]
    for headers in [*asked, {}]:
        assert await handshake(guarded, **headers) == 101
        for call in ("pause", "resume", "checkpoint"):
            assert (await client.post(f"/model/{call}", headers=headers)).status_code == 200, headers


async def test_pages_of_allowed_origins_read_and_never_operate(client: httpx.AsyncClient, world: World) -> None:
    world.set(allowed_origins=(GOOD,), api_keys=(KEY,))
    headers = {"Origin": GOOD, "X-API-Key": KEY}
    assert await handshake(world, **headers) == 101
    answers = [
        await client.get("/markets", headers=headers),
        await client.post("/ws-ticket", headers=headers),
        await client.post("/predict", headers=headers, json=CANDLES),
    ]
    answers += [await client.post(f"/model/{call}", headers=headers) for call in OPERATING]
    assert [answer.status_code for answer in answers] == [200] * 3 + [403] * len(OPERATING)
    assert {answer.headers["access-control-allow-origin"] for answer in answers} == {GOOD}
    assert not world.market.state.paused


async def test_a_second_origin_header_does_not_hide_the_first(client: httpx.AsyncClient) -> None:
    for origins in (OWN[0], FOREIGN[0]), (FOREIGN[0], OWN[0]):
        answer = await client.post("/model/pause", headers=[("Origin", origin) for origin in origins])
        assert answer.status_code == 403


async def test_a_preflight_is_told_what_the_guard_would_say(client: httpx.AsyncClient, world: World) -> None:
    world.set(allowed_origins=(GOOD,))

    async def ask(path: str, method: str, origin: str = GOOD) -> httpx.Response:
        headers = {"Origin": origin, "Access-Control-Request-Method": method}
        return await client.options(path, headers=headers)

    for method, path in routes(world):
        answer = await ask(path, method)
        allowed = method == "GET" or path in READING_POSTS
        assert (answer.status_code == 200) == (allowed and method != "HEAD"), (method, path)
        if method == "POST":
            assert ("POST" in answer.headers["access-control-allow-methods"]) == (path in READING_POSTS)
    refused = await ask("/markets", "GET", "https://evil.example")
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")
    assert "access-control-allow-origin" not in refused.headers


async def test_a_star_lets_every_page_read_and_none_operate(client: httpx.AsyncClient, world: World) -> None:
    world.set(allowed_origins=("*",))
    headers = {"Origin": "https://any.example"}
    ticket = await client.post("/ws-ticket", headers=headers)
    assert (ticket.status_code, ticket.headers["access-control-allow-origin"]) == (200, "*")
    assert await handshake(world, **headers) == 101
    assert (await client.post("/model/pause", headers=headers)).status_code == 403


async def test_only_allowed_origins_are_told_that_they_may_read(client: httpx.AsyncClient, world: World) -> None:
    world.set(allowed_origins=(GOOD,))
    good = await client.get("/markets", headers={"Origin": GOOD})
    assert good.headers["access-control-allow-origin"] == GOOD
    evil = await client.get("/markets", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in evil.headers
