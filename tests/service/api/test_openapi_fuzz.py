"""schemathesis over the OpenAPI document, with no, wrong and right keys: no 5xx, nothing undocumented."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from service.api.app import create_api
from service.api.deps import ApiDeps
from service.broadcast import Broadcaster
from tests.builders import START
from tests.fakes import InMemoryStore
from tests.service.api.conftest import KEY, World, serving

load_all_checks()
# Candles that follow the schema need not be consecutive (422); what does not follow it may be too large as well (413).
NOT_DECIDED_BY_SCHEMA = CHECKS.get_by_names(["positive_data_acceptance", "negative_data_rejection"])
FEW, MANY = 3, 300
NO_KEY: dict[str, str] = {}
WRONG_KEY = {"Authorization": "Bearer wrong"}
RIGHT_KEY = {"Authorization": f"Bearer {KEY}"}


def operations(keyed: bool) -> dict[str, Any]:
    """Map the label of every documented operation to it."""
    options = World().set(api_keys=(KEY,) if keyed else ()).options
    app = create_api(ApiDeps({}, InMemoryStore(), Broadcaster(0), lambda: START, options))
    schema = schemathesis.openapi.from_dict(app.openapi())
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


OPEN, KEYED = operations(keyed=False), operations(keyed=True)


@contextmanager
def service(keyed: bool) -> Iterator[str]:
    """Serve a filled world from a thread of its own; yields its URL."""
    ready = threading.Event()
    started: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        world = World().set(requests_per_minute=10**9, api_keys=(KEY,) if keyed else ())
        await world.fill(50)
        async with serving(world) as address:
            stop = asyncio.Event()
            started.append((f"http://{address}", asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(30)
    url, loop, stop = started[0]
    yield url
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)


@pytest.fixture(scope="module")
def open_url() -> Iterator[str]:
    with service(keyed=False) as url:
        yield url


@pytest.fixture(scope="module")
def keyed_url() -> Iterator[str]:
    with service(keyed=True) as url:
        yield url


def fuzz(operation: Any, url: str, headers: dict[str, str], count: int) -> int:
    """Send ``count`` valid and, where there can be any, as many invalid requests; return how many were sent."""
    takes_something = bool(list(operation.query)) or bool(list(operation.body))
    modes = list(GenerationMode) if takes_something else [GenerationMode.POSITIVE]
    return sum(_fuzz(operation.as_strategy(generation_mode=mode), url, headers, count) for mode in modes)


def _fuzz(cases: Any, url: str, headers: dict[str, str], count: int) -> int:
    sent = 0

    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def run(case: Case) -> None:
        nonlocal sent
        sent += 1
        answer = case.call(base_url=url, headers=headers)
        excluded = NOT_DECIDED_BY_SCHEMA if (case.method, case.path) == ("POST", "/predict") else []
        if headers is WRONG_KEY:
            assert answer.status_code == 401 or case.path == "/health/live"
            excluded = NOT_DECIDED_BY_SCHEMA
        case.validate_response(answer, headers=headers, excluded_checks=excluded)

    run()
    return sent


@pytest.mark.parametrize("label", OPEN)
def test_any_request_gets_a_documented_answer(label: str, open_url: str) -> None:
    assert fuzz(OPEN[label], open_url, NO_KEY, FEW)


@pytest.mark.parametrize("headers", [WRONG_KEY, RIGHT_KEY], ids=["wrong key", "right key"])
@pytest.mark.parametrize("label", KEYED)
def test_any_request_with_a_key_gets_a_documented_answer(label: str, headers: dict[str, str], keyed_url: str) -> None:
    assert fuzz(KEYED[label], keyed_url, headers, FEW)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("label", OPEN)
def test_very_many_requests_get_documented_answers(label: str, open_url: str) -> None:
    tell(label, fuzz(OPEN[label], open_url, NO_KEY, MANY))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("headers", [WRONG_KEY, RIGHT_KEY], ids=["wrong key", "right key"])
@pytest.mark.parametrize("label", KEYED)
def test_very_many_requests_with_a_key_get_documented_answers(
    label: str, headers: dict[str, str], keyed_url: str
) -> None:
    tell(label, fuzz(KEYED[label], keyed_url, headers, MANY))


def tell(label: str, count: int) -> None:
    """Say how many cases there were, for whoever adds them up."""
    print(f"\n{count} cases of {label}")  # noqa: T201
    assert count
