"""ccxt's sockets, guarded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest

from service.feed.client import CallFailed
from service.feed.sockets import guarded_handler
from service.simulator.server import SimulatedExchange
from tests.service.feed.test_client import Listener, make_client, watch_for_ever


@pytest.fixture
async def exchange() -> AsyncIterator[SimulatedExchange]:
    async with SimulatedExchange(speed=20) as exchange:
        yield exchange


async def test_a_receive_loop_that_dies_is_noticed_at_once_and_the_next_watch_dials_again(
    exchange: SimulatedExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(exchange, Listener())
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    await client.watch()
    [socket] = client.api.clients.values()

    def missing(_: object) -> NoReturn:
        raise AttributeError("'NoneType' object has no attribute '_buffer'")

    with monkeypatch.context() as broken:
        broken.setattr(type(socket), "buffer", property(missing))
        with pytest.raises(CallFailed, match="the receive loop ended: AttributeError"):
            await asyncio.wait_for(watch_for_ever(client), 5)
    await client.drop_sockets()
    await client.watch()
    assert [socket] != list(client.api.clients.values())
    await client.close()
    assert unhandled == []


class Socket:
    lastPong: int | None = None
    last_message_at = 7

    def handle_message(self, message: object) -> None:
        raise ValueError(message)


def test_any_frame_shows_that_the_peer_lives_even_one_that_makes_no_sense() -> None:
    socket, malformed = Socket(), []
    guarded_handler(socket, lambda: malformed.append(1))("?")
    assert socket.lastPong == 7
    assert malformed == [1]
