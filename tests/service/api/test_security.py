"""Keys, tickets, origins and hosts: the whole route table against every kind of caller."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import structlog
import websockets
from fastapi.routing import APIWebSocketRoute
from starlette.routing import Route
from websockets.asyncio.client import connect

from service.api.app import create_api, walk_routes
from service.api.deps import ApiDeps
from service.api.guard import OPEN_PATHS
from service.api.security import TICKET_SECONDS, KeyRing, Tickets, presented_keys
from service.broadcast import Broadcaster
from tests.builders import MARKET, START
from tests.fakes import InMemoryStore
from tests.service.api.conftest import KEY, World, serving
from tests.support.asgi_socket import AsgiSocket

PUBLIC = {"/", "/health/live", "/docs", "/docs/start.js", "/openapi.json", "/favicon.ico"}
OPEN, KEY_NEEDED = "open", "key needed"
ANSWERS: dict[tuple[str, str], str] = {
    **{("GET", path): OPEN for path in sorted(PUBLIC)},
    **{("HEAD", path): OPEN for path in sorted(PUBLIC)},
    ("HEAD", "/health/ready"): KEY_NEEDED,
    ("HEAD", "/metrics"): KEY_NEEDED,
    ("GET", "/predict"): KEY_NEEDED,
    ("POST", "/predict"): KEY_NEEDED,
    ("GET", "/candles"): KEY_NEEDED,
    ("GET", "/predictions"): KEY_NEEDED,
    ("GET", "/steps"): KEY_NEEDED,
    ("GET", "/events"): KEY_NEEDED,
    ("GET", "/series"): KEY_NEEDED,
    ("GET", "/score"): KEY_NEEDED,
    ("GET", "/markets"): KEY_NEEDED,
    ("GET", "/model"): KEY_NEEDED,
    ("POST", "/model/pause"): KEY_NEEDED,
    ("POST", "/model/resume"): KEY_NEEDED,
    ("POST", "/model/checkpoint"): KEY_NEEDED,
    ("POST", "/model/rollback"): KEY_NEEDED,
    ("POST", "/ws-ticket"): KEY_NEEDED,
    ("GET", "/health/ready"): KEY_NEEDED,
    ("GET", "/metrics"): KEY_NEEDED,
}
"""What every HTTP route must ask for: a route that is added without a line here fails the test below."""
SOCKETS = ("/ws",)
BAD_KEYS: dict[str, dict[str, str | bytes]] = {
    "no key": {},
    "a wrong key": {"X-API-Key": "wrong"},
    "the key with more": {"Authorization": f"Bearer {KEY}x"},
    "the key's beginning": {"Authorization": f"Bearer {KEY[:-1]}"},
    "an empty key": {"X-API-Key": ""},
    "an empty bearer": {"Authorization": "Bearer "},
    "another scheme": {"Authorization": f"Basic {KEY}"},
    "a Latin-1 key": {"X-API-Key": b"caf\xe9"},
    "smart quotes": {"Authorization": "Bearer “key”".encode()},
    "a long key": {"X-API-Key": "k" * 30_000},
    "a NUL": {"X-API-Key": b"a\x00b"},
    "a cookie": {"Cookie": f"key={KEY}"},
}
GOOD_KEYS: dict[str, dict[str, str | bytes]] = {
    "a bearer": {"Authorization": f"Bearer {KEY}"},
    "a bearer in small letters": {"authorization": f"bearer {KEY}"},
    "a header": {"X-API-Key": KEY},
    "another of the keys": {"X-API-Key": "another-key"},
}
TICKETS = ("fresh", "used", "expired", "unknown")


@pytest.fixture
def keyed(world: World) -> World:
    return world.set(api_keys=(KEY, "another-key"))


def routes(world: World) -> list[tuple[str, str]]:
    """List method and path of every HTTP route there is, from the application itself."""
    found = [route for route in walk_routes(world.app.routes) if isinstance(route, Route)]
    return sorted({(method, route.path) for route in found for method in route.methods or ()})


def test_every_route_has_a_line_in_the_matrix_and_is_documented_or_public(keyed: World) -> None:
    assert set(routes(keyed)) == set(ANSWERS)
    assert tuple(websocket_paths(keyed)) == SOCKETS
    documented = {(m.upper(), path) for path, calls in keyed.app.openapi()["paths"].items() for m in calls}
    assert {(m, path) for m, path in ANSWERS if m != "HEAD"} == documented | {("GET", path) for path in PUBLIC}


@pytest.mark.parametrize("route", ANSWERS, ids=" ".join)
async def test_every_route_answers_every_caller_as_the_matrix_says(
    client: httpx.AsyncClient, keyed: World, route: tuple[str, str]
) -> None:
    tickets = keyed.app.state.tickets
    used = tickets.issue()
    assert tickets.redeem(used)
    refused: dict[str, Any] = dict(BAD_KEYS)
    for name, ticket in (("a fresh ticket", tickets.issue()), ("a used ticket", used)):
        refused |= {name: {"X-API-Key": ticket}, f"{name} as a bearer": {"Authorization": f"Bearer {ticket}"}}
    for kind, headers in refused.items():
        answer = await client.request(*route, headers=headers)
        assert (answer.status_code == 401) == (ANSWERS[route] == KEY_NEEDED), kind
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["content-type"] == "application/problem+json"
        else:
            assert answer.status_code in (200, 204), kind
    for kind, good in GOOD_KEYS.items():
        answer = await client.request(*route, headers=good)  # type: ignore[arg-type]
        expected = {("POST", "/predict"): 422, ("POST", "/model/rollback"): 409}.get(route, 200)
        assert answer.status_code == expected, kind


@pytest.mark.parametrize("path", SOCKETS)
async def test_every_socket_answers_every_caller_as_the_matrix_says(keyed: World, path: str) -> None:
    now = 0.0
    keyed.app.state.tickets = tickets = Tickets(lambda: now)
    expired = tickets.issue()
    now = float(TICKET_SECONDS)
    used = tickets.issue()
    assert tickets.redeem(used)
    first_frames = {"fresh": tickets.issue(), "used": used, "expired": expired, "unknown": "no-ticket"}
    assert set(first_frames) == set(TICKETS)
    for kind, headers in BAD_KEYS.items():
        socket = await opened(keyed, path, headers)
        if any(name.lower() in ("x-api-key", "authorization") for name in headers) and kind != "another scheme":
            assert socket.status == 401, kind
        else:
            assert (socket.status, socket.frames(), socket.close_code) == (None, [], None), kind
            await socket.send('{"type":"ping"}')
            assert socket.close_code == 1008, kind
    for kind, headers in GOOD_KEYS.items():
        socket = await opened(keyed, path, headers)
        assert [frame["type"] for frame in socket.frames()] == ["hello"], kind
        await socket.leave()
    for kind, ticket in first_frames.items():
        socket = await opened(keyed, path, {})
        await socket.send(auth(ticket))
        if kind == "fresh":
            assert [frame["type"] for frame in socket.frames()] == ["hello"]
            await socket.leave()
        else:
            assert (socket.frames(), socket.close_code) == ([], 1008), kind


async def opened(world: World, path: str, headers: dict[str, str | bytes]) -> AsgiSocket:
    texts = {name: value if isinstance(value, str) else value.decode("latin-1") for name, value in headers.items()}
    socket = AsgiSocket(world.app, headers=texts, path=path)
    await socket.open()
    return socket


async def test_unknown_paths_are_not_told_from_known_ones_without_a_key(
    client: httpx.AsyncClient, keyed: World
) -> None:
    assert keyed.options.api_keys
    assert (await client.get("/no-such-path")).status_code == 401
    assert (await client.get("/no-such-path", headers={"X-API-Key": KEY})).status_code == 404


def test_open_paths_are_those_of_the_contract() -> None:
    assert OPEN_PATHS == PUBLIC


def test_failures_63_keys_are_compared_as_bytes_of_any_kind() -> None:
    ring = KeyRing(["schlüssel"])
    assert ring.find({"headers": [(b"x-api-key", "schlüssel".encode())]}) is not None
    for value in (b"caf\xe9", b"\x00", b"", b"k" * 1_000_000, "“schlüssel”".encode()):
        assert ring.find({"headers": [(b"x-api-key", value)]}) is None
    assert presented_keys({"headers": [(b"authorization", b"Bearer  a ")]}) == [b"a"]


# --- WebSocket ------------------------------------------------------------------------------------------------------


def websocket_paths(world: World) -> list[str]:
    return [route.path for route in walk_routes(world.app.routes) if isinstance(route, APIWebSocketRoute)]


async def test_failures_49_every_websocket_route_refuses_without_a_key(keyed: World) -> None:
    paths = websocket_paths(keyed)
    assert paths
    async with serving(keyed) as address:
        for path in [*paths, "/no-such-socket"]:
            for headers in ({"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
                with pytest.raises(websockets.InvalidStatus) as refused:
                    await connect(f"ws://{address}{path}", additional_headers=headers)
                assert refused.value.response.status_code == 401
        with pytest.raises(websockets.InvalidStatus):
            await connect(f"ws://{address}/no-such-socket")


async def first_frame(address: str, send: str | bytes | None, **arguments: Any) -> dict[str, Any] | int:
    """Return the first frame the server sends, or the code it closes with."""
    async with connect(f"ws://{address}/ws", **arguments) as socket:
        if send is not None:
            await socket.send(send)
        try:
            return json.loads(await socket.recv())  # type: ignore[no-any-return]
        except websockets.ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 0


async def ticket_of(address: str) -> str:
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"http://{address}/ws-ticket", headers={"X-API-Key": KEY})
        assert answer.json()["expires_in"] == 30
        return str(answer.json()["ticket"])


def auth(ticket: str) -> str:
    return json.dumps({"type": "auth", "ticket": ticket})


async def test_a_ticket_opens_one_socket_once(keyed: World) -> None:
    async with serving(keyed) as address:
        ticket = await ticket_of(address)
        hello = await first_frame(address, auth(ticket))
        assert isinstance(hello, dict)
        assert hello["type"] == "hello"
        assert await first_frame(address, auth(ticket)) == 1008


async def test_a_key_in_the_handshake_opens_without_a_ticket(keyed: World) -> None:
    async with serving(keyed) as address:
        hello = await first_frame(address, None, additional_headers={"Authorization": f"Bearer {KEY}"})
        assert isinstance(hello, dict)


@pytest.mark.parametrize("frame", ['{"type":"ping"}', auth(KEY), auth(""), '{"type":"auth"}', b"\x00", "", auth("é\0")])
async def test_anything_but_a_right_ticket_first_closes_with_1008(keyed: World, frame: str | bytes) -> None:
    async with serving(keyed) as address:
        assert await first_frame(address, frame) == 1008


async def test_nothing_is_sent_before_the_ticket_and_silence_is_cut_off(keyed: World) -> None:
    keyed.set(auth_seconds=0.05)
    async with serving(keyed) as address:
        assert await first_frame(address, None) == 1008


@pytest.mark.parametrize(("market", "answer"), [(MARKET, "hello"), ("simulated:NO/SUCH", 1008)])
async def test_without_a_ticket_known_and_unknown_markets_look_the_same(
    keyed: World, market: str, answer: str | int
) -> None:
    async def ask(ticket: str) -> AsgiSocket:
        socket = AsgiSocket(keyed.app, query=f"market={market}")
        await socket.open()
        assert (socket.status, socket.frames(), socket.close_code) == (None, [], None)
        await socket.send(auth(ticket))
        return socket

    assert (await ask("no-ticket")).close_code == 1008
    right = await ask(keyed.app.state.tickets.issue())
    assert ([frame["type"] for frame in right.frames()] or [right.close_code]) == [answer]
    if right.close_code is None:
        await right.leave()


def test_a_ticket_expires_after_30_seconds() -> None:
    now = 0.0
    tickets = Tickets(lambda: now)
    young, old = tickets.issue(), tickets.issue()
    now = TICKET_SECONDS - 0.1
    assert tickets.redeem(young)
    now = TICKET_SECONDS
    assert not tickets.redeem(old)


def test_tickets_are_bounded_and_the_oldest_makes_room() -> None:
    tickets = Tickets(lambda: 0.0)
    first = tickets.issue()
    for _ in range(10_000):
        last = tickets.issue()
    assert len(tickets._expiries) == 10_000
    assert not tickets.redeem(first)
    assert tickets.redeem(last)


# --- hosts, canary --------------------------------------------------------------------------------------------------


async def test_only_our_own_host_names_are_answered_when_configured(client: httpx.AsyncClient, world: World) -> None:
    world.set(allowed_hosts=("localhost", "127.0.0.1", "::1"))
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert (await client.get("/health/live", headers={"Host": host})).status_code == 200
    for host in ("rebound.example:8000", "localhost.evil", "", "[", "a@b"):
        assert (await client.get("/health/live", headers={"Host": host})).status_code == 400


async def test_two_host_headers_are_no_request(client: httpx.AsyncClient, world: World) -> None:
    world.set(allowed_hosts=("good.example",))
    for second in ("good.example", "evil.example"):
        answer = await client.get("/health/live", headers=[("Host", "good.example"), ("Host", second)])
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


async def test_a_canary_key_is_in_no_log_answer_metric_or_repr(client: httpx.AsyncClient, world: World) -> None:
    canary = "canary-8f3a"
    world.set(api_keys=(canary,))
    with structlog.testing.capture_logs() as logs:
        answers = [
            await client.get(f"/steps?key={canary}", headers={"X-API-Key": canary}),
            await client.get(f"/{canary}", headers={"X-API-Key": canary}),
            await client.get("/markets", headers={"Authorization": f"Bearer {canary}x"}),
            await client.post("/predict", content=f'{{"{canary}": "{canary}"', headers={"X-API-Key": canary}),
            await client.get("/metrics", headers={"X-API-Key": canary}),
        ]
    assert [answer.status_code for answer in answers] == [422, 404, 401, 422, 200]
    told = str(logs) + repr(world.options) + "".join(answer.text + str(answer.headers) for answer in answers)
    assert canary not in told


def test_keys_are_documented_where_they_are_needed() -> None:
    deps = ApiDeps({}, InMemoryStore(), Broadcaster(0), lambda: START, World().set(api_keys=(KEY,)).options)
    document = create_api(deps).openapi()
    assert document["security"] == [{"bearer": []}, {"key": []}]
    assert document["paths"]["/health/live"]["get"]["security"] == []
    assert "security" not in document["paths"]["/markets"]["get"]
    assert MARKET not in str(document["paths"]["/ws-ticket"])
