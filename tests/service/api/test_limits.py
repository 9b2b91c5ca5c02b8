"""Rates, socket caps and body limits."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx
import pytest
import websockets
from websockets.asyncio.client import connect

from service.api.limits import RequestLimit, SocketLimit, TooManySockets, address
from tests.service.api.conftest import KEY, World, serving
from tests.service.api.test_sockets import raw_socket
from tests.support.eventually import eventually


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


PREVIEW = {"candles": [[1000, 1, 1, 1, 1, 1], [2000, 1, 1, 1, 1, 1]]}


async def test_too_many_previews_waiting_answer_503(client: httpx.AsyncClient, world: World) -> None:
    world.set(previews_at_once=1, previews_waiting=2)
    world.market.may_answer.clear()
    calls = [asyncio.create_task(client.post("/predict", json=PREVIEW)) for _ in range(3)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status_code for task in done] == [503]
    world.market.may_answer.set()
    assert sorted(answer.status_code for answer in await asyncio.gather(*calls)) == [200, 200, 503]


async def test_previews_that_arrive_together_reach_the_learner_together_eight_at_a_time(
    client: httpx.AsyncClient, world: World
) -> None:
    world.market.may_answer.clear()
    calls = [asyncio.create_task(client.post("/predict", json=PREVIEW)) for _ in range(20)]
    await eventually(lambda: world.app.state.previews[world.market.market].taken == 20)
    assert world.market.asked == 8
    world.market.may_answer.set()
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
    assert (world.market.asked, world.app.state.previews[world.market.market].taken) == (20, 0)


# --- headers, on a real socket --------------------------------------------------------------------------------------


async def raw_answer(where: str, *sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read to the end of the connection; return the first answer's status, headers and body."""
    loop = asyncio.get_running_loop()
    got = b""
    with raw_socket(where, receive_buffer=1 << 20) as raw:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                for part in sent:
                    await loop.sock_sendall(raw, part)
            with contextlib.suppress(ConnectionError):
                while part := await loop.sock_recv(raw, 1 << 16):
                    got += part
    head, _, body = got.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def test_headers_that_never_end_are_refused_and_not_kept(world: World) -> None:
    async with serving(world) as where:
        line = b"X-Long: " + b"x" * 8192 + b"\r\n"
        status, headers, body = await raw_answer(where, b"GET /markets HTTP/1.1\r\nHost: x\r\n", *[line] * 200)
        assert (status, headers["content-type"]) == (431, "application/problem+json")
        assert json.loads(body)["status"] == 431
        await eventually(lambda: not world.connections())


async def test_headers_below_the_limit_are_taken_in_any_number_of_pieces(address: str) -> None:
    lines = [b"X-%d: " % number + b"x" * 500 + b"\r\n" for number in range(60)]
    head = f"GET /health/live HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n".encode()
    assert (await raw_answer(address, head, *lines, b"\r\n"))[0] == 200


@pytest.mark.parametrize("upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"], ids=["http", "websocket"])
@pytest.mark.parametrize(
    ("path", "header", "status"),
    [(0, 65_000, 200), (0, 65_600, 431), (0, 100_000, 431), (66_000, 0, 431), (33_000, 33_000, 431)],
)
async def test_more_than_64_kib_before_the_body_are_refused_also_when_they_come_at_once(
    address: str, upgrade: bytes, path: int, header: int, status: int
) -> None:
    start = b"GET /health/live HTTP/1.1" if not path else b"GET /markets?" + b"q" * path + b" HTTP/1.1"
    rest = b"\r\nHost: x\r\nX-Long: " + b"x" * header + b"\r\n" + (upgrade or b"Connection: close\r\n") + b"\r\n"
    answered, headers, _ = await raw_answer(address, start + rest)
    if upgrade:
        assert answered in (414, 431)
    else:
        assert answered == status
    assert headers["content-type"] == ("application/json" if answered == 200 else "application/problem+json")


@pytest.mark.parametrize(
    "sent",
    [
        b"HELLO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /markets HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_400_problem(address: str, sent: bytes) -> None:
    status, headers, body = await raw_answer(address, sent)
    assert (status, headers["content-type"], headers["connection"]) == (400, "application/problem+json", "close")
    assert json.loads(body)["status"] == 400


async def test_no_answer_is_written_into_the_middle_of_another(world: World) -> None:
    await world.fill(20_000)
    loop = asyncio.get_running_loop()
    async with serving(world) as where:
        with raw_socket(where) as raw:
            await loop.sock_sendall(raw, f"GET /steps?format=csv HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
            got = await loop.sock_recv(raw, 1000)
            await loop.sock_sendall(raw, b"NO HTTP\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while part := await loop.sock_recv(raw, 1 << 16):
                    got += part
        assert got.count(b"HTTP/1.1") == 1
        assert b"HTTP/1.1 200" in got


async def test_a_socket_cannot_take_over_a_connection_whose_answer_is_not_finished(world: World) -> None:
    world.market.may_answer.clear()
    async with serving(world) as where:
        upgrade = (
            f"GET /ws HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(*where.split(":"))
        writer.write(f"GET /model HTTP/1.1\r\nHost: {where}\r\n\r\n{upgrade}".encode())
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(10):
                assert await reader.read() == b""
        writer.transport.abort()
        world.market.may_answer.set()
        await eventually(lambda: not world.connections() and world.broadcaster.subscribers == 0)
