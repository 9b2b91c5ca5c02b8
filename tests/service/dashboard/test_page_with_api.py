"""The page on the real API over fakes: what they say to each other has to fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect

from service.api.app import create_api
from service.api.deps import ApiDeps, ApiOptions
from service.broadcast import Broadcaster
from tests.builders import MARKET, START, make_batch, make_candle, make_prediction, make_step
from tests.fakes import InMemoryStore
from tests.service.dashboard.conftest import OpenPage
from tests.service.dashboard.eventually import eventually
from tests.service.dashboard.stub_service import serving
from tests.support.fake_market import FakeMarket

pytestmark = pytest.mark.page
COUNT = 300


class Service:
    """The API over fakes, served from a thread; ``call`` runs a function there."""

    def __init__(self, *keys: str) -> None:
        self.market = FakeMarket()
        feed = self.market.state.feed
        assert feed is not None
        self.market.becomes(feed=replace(feed, last_open_time=START + (COUNT - 1) * 1000))
        self.store = InMemoryStore()
        self.broadcaster = Broadcaster(first_seq=1000)
        options = ApiOptions(api_keys=keys)
        deps = ApiDeps({MARKET: self.market}, self.store, self.broadcaster, lambda: START, options)
        self.app = create_api(deps)
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None

    async def fill(self) -> None:
        run = await self.store.open_run(MARKET, {}, START)
        await self.store.write(run, make_batch(0, COUNT))

    def call(self, act: Callable[[], object]) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(act)

    def drop_sockets(self) -> None:
        """End every WebSocket as a service does that shuts down, then take new ones."""

        async def drop() -> None:
            await self.broadcaster.close()
            self.broadcaster.closed = False

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(drop(), self.loop).result(10)

    def close_candle(self, index: int, **step: Any) -> None:
        """Publish the two frames of this candle."""
        body = {"candle": make_candle(index), "prediction": make_prediction(index + 1)}
        frame = {"step": make_step(index, **step), "score": {"accuracy": 0.5}}
        self.call(lambda: self.broadcaster.publish("prediction", MARKET, body))
        self.call(lambda: self.broadcaster.publish("step", MARKET, frame))


def served(service: Service) -> Iterator[Service]:
    def remember(loop: asyncio.AbstractEventLoop) -> None:
        service.loop = loop

    with serving(service.app, remember) as service.url:
        assert service.loop is not None
        asyncio.run_coroutine_threadsafe(service.fill(), service.loop).result(10)
        yield service


@pytest.fixture
def service() -> Iterator[Service]:
    yield from served(Service())


@pytest.fixture
def guarded_service() -> Iterator[Service]:
    yield from served(Service("sésame-钥匙"))


def clock(index: int) -> str:
    seconds = (START // 1000 + index) % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def test_page_and_api_understand_each_other(service: Service, open_page: OpenPage) -> None:
    page = open_page(service.url)
    expect(page.locator("#next-time")).to_have_text(f"{clock(COUNT)} UTC")
    expect(page.locator("#call-word")).to_have_text("up")
    expect(page.locator("#fact-parameters")).to_have_text("12.3K")
    expect(page.locator("#recent-table tbody tr")).to_have_count(12)
    eventually(lambda: service.broadcaster.subscribers == 1)
    service.close_candle(COUNT, loss=float("nan"))
    expect(page.locator("#next-time")).to_have_text(f"{clock(COUNT + 1)} UTC")
    expect(page.locator("#recent-table tbody tr").first).to_contain_text(clock(COUNT))
    expect(page.locator("#strip-tag")).to_be_visible()


def test_page_resumes_on_the_real_broadcaster(service: Service, open_page: OpenPage) -> None:
    page = open_page(service.url, expected=("WebSocket connection",))
    eventually(lambda: service.broadcaster.subscribers == 1)
    service.close_candle(COUNT)
    expect(page.locator("#next-time")).to_have_text(f"{clock(COUNT + 1)} UTC")
    service.drop_sockets()
    service.close_candle(COUNT + 1)
    service.close_candle(COUNT + 2)
    expect(page.locator("#next-time")).to_have_text(f"{clock(COUNT + 3)} UTC")
    for age in range(3):
        expect(page.locator("#recent-table tbody tr").nth(age)).to_contain_text(clock(COUNT + 2 - age))


def test_page_opens_with_a_key(guarded_service: Service, open_page: OpenPage) -> None:
    page = open_page(guarded_service.url, expected=("401", "WebSocket connection"))
    page.locator("#key").fill("sésame-钥匙 ")
    page.get_by_role("button", name="Open").click()
    eventually(lambda: guarded_service.broadcaster.subscribers == 1)
    guarded_service.close_candle(COUNT)
    expect(page.locator("#next-time")).to_have_text(f"{clock(COUNT + 1)} UTC")


def test_documentation_shows_without_any_other_host(service: Service, open_page: OpenPage, charts_built: None) -> None:
    page = open_page(service.url + "/docs")
    expect(page.get_by_text("/predict").first).to_be_visible()
