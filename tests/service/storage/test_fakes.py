"""The fake's switch; what else it does is in the contract."""

from __future__ import annotations

import pytest

from service.ports import Run, StoreUnavailable
from tests.builders import MARKET, make_batch, make_checkpoint
from tests.fakes import InMemoryStore


async def test_every_call_of_the_fake_fails_while_it_is_unavailable() -> None:
    store = InMemoryStore()
    run = await store.open_run(MARKET, {}, 0)
    store.unavailable = "on purpose"
    calls = [
        store.ping(),
        store.latest_run(MARKET),
        store.open_run(MARKET, {}, 0),
        store.write(run, make_batch()),
        store.candles(MARKET, None, None, 1),
        store.last_candles(MARKET, 1),
        store.predictions(MARKET, None, None, 1),
        store.steps(MARKET, None, None, 1),
        store.events(MARKET, None, None, 1),
        store.series(MARKET, [], 1, None, None, 1),
        store.save(run, make_checkpoint()),
        store.latest(run),
        store.previous(run, 1),
        store.set_aside(run, make_checkpoint(), ""),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="on purpose"):
            await call
    store.unavailable = None
    assert await store.candles(MARKET, None, None, 1) == []
    assert await store.latest(Run(1, MARKET, {}, 0)) is None
