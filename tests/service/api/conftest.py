"""An API over fakes: by function call for REST, on a real socket for WebSockets and for what only TCP can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import uvicorn
from fastapi import FastAPI

from service.api.app import create_api
from service.api.deps import ApiDeps, ApiOptions
from service.api.sockets import listen, server_config
from service.broadcast import Broadcaster
from service.ports import LiveMarket
from tests.builders import MARKET, START, make_batch, make_candle, make_prediction, make_step
from tests.fakes import InMemoryStore
from tests.support.fake_market import FakeMarket

KEY = "a-key-of-this-test"


@dataclass
class World:
    """Everything around one API, for a test to change."""

    options: ApiOptions = field(default_factory=lambda: ApiOptions(version="1.2.3"))
    market: FakeMarket = field(default_factory=FakeMarket)
    store: InMemoryStore = field(default_factory=InMemoryStore)
    broadcaster: Broadcaster = field(default_factory=lambda: Broadcaster(first_seq=1000, history=64, queue_limit=8))
    static: Path | None = None

    def __post_init__(self) -> None:
        self.markets: dict[str, LiveMarket] = {self.market.market: self.market}
        self._app: FastAPI | None = None
        self.server: uvicorn.Server | None = None

    @property
    def app(self) -> FastAPI:
        if self._app is None:
            deps = ApiDeps(self.markets, self.store, self.broadcaster, lambda: START, self.options)
            self._app = create_api(deps if self.static is None else replace(deps, static=self.static))
        return self._app

    def set(self, **options: Any) -> World:
        """Change options, before the first request."""
        self.options = replace(self.options, **options)
        return self

    async def fill(self, count: int) -> None:
        """Store ``count`` consecutive candles, predictions and steps."""
        run = await self.store.open_run(MARKET, {}, START)
        await self.store.write(run, make_batch(0, count))

    def connections(self) -> set[Any]:
        """Return the protocols of all open connections while serving."""
        assert self.server is not None
        return set(self.server.server_state.connections)

    def publish(self, index: int) -> tuple[int, int]:
        """Publish the frames of one candle."""
        body = {"candle": make_candle(index), "prediction": make_prediction(index + 1)}
        first = self.broadcaster.publish("prediction", MARKET, body)
        return first, self.broadcaster.publish("step", MARKET, {"step": make_step(index), "score": {"accuracy": 0.5}})


@pytest.fixture(autouse=True, scope="module")
def silent_log() -> Iterator[None]:
    """Drop log lines; ``structlog.testing.capture_logs`` still sees them all."""

    def drop(*_: object) -> Any:
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[drop])
    yield
    structlog.configure(**before)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Calls the API without a socket; the app is built at the first request."""
    transport = LateTransport(world)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as opened:
        yield opened


class LateTransport(httpx.AsyncBaseTransport):
    """ASGITransport to a world's app, made when it is first needed so that a test can set options."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await httpx.ASGITransport(self._world.app).handle_async_request(request)


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[str]:
    """Serve the world's app on a free port; yields HOST:PORT."""
    listener = listen("127.0.0.1", 0)
    server = world.server = QuietServer(server_config(world.app))
    task = asyncio.create_task(server.serve([listener]))
    try:
        host, port = listener.getsockname()
        yield f"{host}:{port}"
    finally:
        await world.broadcaster.close()
        server.should_exit = True
        await task


class QuietServer(uvicorn.Server):
    """uvicorn that leaves the signal handlers of the test process alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture
async def address(world: World) -> AsyncIterator[str]:
    async with serving(world) as where:
        yield where
