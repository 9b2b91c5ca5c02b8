"""Rates, socket caps and body limits."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest
import websockets
from websockets.asyncio.client import connect

from service.api.limits import RequestLimit, SocketLimit, TooManySockets, address
from tests.service.api.conftest import KEY, World, serving


async def test_more_requests_than_allowed_answer_429_with_when_to_come_again(
    client: httpx.AsyncClient, world: World
) -> None:
    world.set(requests_per_minute=5)
    statuses = [(await client.get("/markets")).status_code for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2
    answer = await client.get("/markets")
    assert 1 <= int(answer.headers["retry-after"]) <= 61
    assert answer.headers["content-type"] == "application/problem+json"


async def test_failures_65_rotating_proxy_headers_share_one_bucket(client: httpx.AsyncClient, world: World) -> None:
    world.set(requests_per_minute=50)
    statuses = []
    for n in range(100):
        ip = f"203.0.113.{n}"
        headers = {"X-Forwarded-For": ip, "X-Real-IP": ip, "Forwarded": f"for={ip}"}
        statuses.append((await client.get("/health/live", headers=headers)).status_code)
    assert statuses == [200] * 50 + [429] * 50


async def test_a_trusted_proxy_tells_whose_bucket_it_is_by_its_own_entry(
    client: httpx.AsyncClient, world: World
) -> None:
    world.set(requests_per_minute=2, trusted_proxies=("127.0.0.1",))

    async def ask(forwarded: str) -> int:
        return (await client.get("/health/live", headers={"X-Forwarded-For": forwarded})).status_code

    assert [await ask("198.51.100.1") for _ in range(3)] == [200, 200, 429]
    assert await ask("198.51.100.2") == 200
    # Only the last entry is the proxy's own; what stands before it is the caller's invention.
    assert await ask("203.0.113.9, 198.51.100.1") == 429


async def test_each_key_has_its_own_bucket(client: httpx.AsyncClient, world: World) -> None:
    world.set(requests_per_minute=2, api_keys=(KEY, "another"))
    for key in (KEY, "another"):
        statuses = [(await client.get("/markets", headers={"X-API-Key": key})).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


def test_callers_remembered_are_bounded() -> None:
    limit = RequestLimit(1)
    for n in range(20_005):
        limit.retry_after(str(n))
    assert len(limit._limiter.storage._counts) == 20_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("client", "counted"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("testclient", 1), "unknown"),
        (None, "unknown"),
    ],
)
def test_addresses_are_counted_by_household(client: object, counted: str) -> None:
    assert address({"client": client}) == counted


def test_sockets_are_capped_in_all_and_per_caller_and_given_back() -> None:
    limit = SocketLimit(total=2, per_caller=1)
    with limit.hold("a"), limit.hold("b"):
        for caller in ("a", "c"):
            with pytest.raises(TooManySockets), limit.hold(caller):
                pass
    assert limit.open == 0
    with limit.hold("a"):
        assert limit.open == 1


async def test_one_socket_too_many_is_refused_at_the_handshake(world: World) -> None:
    world.set(sockets_per_client=2)
    async with serving(world) as where, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await (await stack.enter_async_context(connect(f"ws://{where}/ws"))).recv()
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(f"ws://{where}/ws")
        assert refused.value.response.status_code == 503


# --- bodies, on a real socket: what is read matters -----------------------------------------------------------------


async def answer_to(where: str, head: str, *chunks: bytes) -> tuple[int, int]:
    """Send a request piece by piece until the answer comes; return its status and the bytes sent."""
    host, port = where.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    sent = 0
    answer = asyncio.create_task(reader.readline())
    try:
        writer.write(head.encode())
        for chunk in chunks:
            with contextlib.suppress(ConnectionError):
                await asyncio.wait({answer, asyncio.create_task(writer.drain())}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                break
            writer.write(chunk)
            sent += len(chunk)
        return int((await answer).split()[1]), sent
    finally:
        writer.transport.abort()


async def test_failures_55_a_declared_200_mib_is_refused_before_it_is_read(address: str) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: {address}\r\nContent-Length: {200 << 20}\r\n\r\n"
    status, _ = await answer_to(address, head)
    assert status == 413


async def test_failures_55_a_chunked_body_is_read_no_further_than_the_limit(address: str) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: {address}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    status, sent = await answer_to(address, head, *[chunk] * 400)
    assert status == 413
    # One MiB was read; the rest of what was sent waits in the kernel's buffers.
    assert sent < 12 << 20


async def test_failures_55_a_dripping_body_is_cut_with_408(world: World) -> None:
    world.set(body_seconds=0.1)
    async with serving(world) as where:
        head = f"POST /predict HTTP/1.1\r\nHost: {where}\r\nContent-Length: 1000\r\n\r\n{{"
        assert (await answer_to(where, head))[0] == 408


async def test_exactly_the_limit_is_read(client: httpx.AsyncClient, world: World) -> None:
    body = b" " * (world.options.body_bytes - 2) + b"{}"
    assert (await client.post("/predict", content=body)).status_code == 422
    assert (await client.post("/predict", content=b" " + body)).status_code == 413


async def test_too_many_previews_waiting_answer_503(client: httpx.AsyncClient, world: World) -> None:
    world.set(previews_waiting=2)
    world.market.may_answer.clear()
    body = {"candles": [[1000, 1, 1, 1, 1, 1], [2000, 1, 1, 1, 1, 1]]}
    calls = [asyncio.create_task(client.post("/predict", json=body)) for _ in range(3)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status_code for task in done] == [503]
    assert world.market.asked == 1, "the live prediction must not wait behind more than one"
    world.market.may_answer.set()
    assert sorted(answer.status_code for answer in await asyncio.gather(*calls)) == [200, 200, 503]
