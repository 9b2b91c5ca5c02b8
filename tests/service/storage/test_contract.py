"""The store contract on SQLite, on PostgreSQL and on the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.storage import SqlCheckpointStore, SqlRecordStore, open_database
from tests.builders import MARKET
from tests.contracts import CHECKPOINT_STORE_CHECKS, RECORD_STORE_CHECKS, CheckpointCheck, RecordCheck
from tests.fakes import InMemoryStore

KINDS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=KINDS)
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    """A record store and a checkpoint store on one empty database."""
    if request.param == "memory":
        fake = InMemoryStore()
        yield fake, fake
        return
    url: str = request.getfixturevalue(f"{request.param}_url")
    async with open_database(url) as database:
        yield SqlRecordStore(database), SqlCheckpointStore(database)


@pytest.mark.parametrize("check", RECORD_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_record_store(stores: tuple[Any, Any], check: RecordCheck) -> None:
    await check(stores[0])


@pytest.mark.parametrize("check", CHECKPOINT_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_checkpoint_store(stores: tuple[Any, Any], check: CheckpointCheck) -> None:
    records, checkpoints = stores
    run = await records.open_run(MARKET, {"a": 1}, 0)
    other = await records.open_run("simulated:BTC/USDT", {"a": 1}, 0)
    await check(checkpoints, run, other)
