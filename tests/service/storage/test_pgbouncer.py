"""Behind pgbouncer, which hands every transaction another connection."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import exc

from service.ports import StoreUnavailable
from service.storage import (
    MarketTaken,
    SqlCheckpointStore,
    SqlRecordStore,
    check_schema,
    market_lease,
    migrate,
    open_database,
)
from tests.builders import MARKET, at, make_batch
from tests.contracts import CHECKPOINT_STORE_CHECKS, RECORD_STORE_CHECKS
from tests.support.pgbouncer import BINARY, pgbouncer
from tests.support.postgres import PostgresCluster

READER = """
import asyncio, os, sys
from service.storage import SqlRecordStore, open_database

async def read():
    async with open_database(sys.argv[1]) as database:
        await asyncio.gather(*(SqlRecordStore(database).latest_run("m") for _ in range(20)))
    os._exit(0)  # without a word to the server

asyncio.run(read())
"""
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed (apt install pgbouncer)"),
]


@pytest.fixture(scope="module")
def bouncer_port(postgres_cluster: PostgresCluster) -> Iterator[int]:
    """The port of a pgbouncer in transaction mode."""
    with pgbouncer(postgres_cluster) as port:
        yield port


@pytest.fixture
def pooled_url(postgres_cluster: PostgresCluster, postgres_url: str, bouncer_port: int) -> str:
    """The URL of a migrated database, through pgbouncer, with the documented switch."""
    return postgres_url.replace(f":{postgres_cluster.port}/", f":{bouncer_port}/") + "?pgbouncer=true"


@pytest.mark.parametrize("check", RECORD_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_failures_75_records_through_pgbouncer(pooled_url: str, check: Any) -> None:
    async with open_database(pooled_url) as database:
        await check(SqlRecordStore(database))


@pytest.mark.parametrize("check", CHECKPOINT_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_failures_75_checkpoints_through_pgbouncer(pooled_url: str, check: Any) -> None:
    async with open_database(pooled_url) as database:
        records = SqlRecordStore(database)
        runs = [await records.open_run(market, {}, 0) for market in (MARKET, "simulated:BTC/USDT")]
        await check(SqlCheckpointStore(database), *runs)


async def test_failures_75_many_tasks_share_few_connections(pooled_url: str) -> None:
    async with open_database(pooled_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        await asyncio.gather(*(store.write(run, make_batch(first, 5)) for first in range(0, 60, 5)))
        pages = await asyncio.gather(*(store.steps(MARKET, None, None, 100) for _ in range(12)))
    assert all([row.open_time for row in page] == [at(index) for index in range(60)] for page in pages)


async def test_failures_75_processes_share_few_connections(pooled_url: str) -> None:
    """Each process counts its prepared statements from one, and those of an ended client stay on the server."""
    async with open_database(pooled_url) as database:
        await SqlRecordStore(database).open_run(MARKET, {}, 0)
    command = [sys.executable, "-c", READER, pooled_url]
    for _ in range(2):
        reader = await asyncio.create_subprocess_exec(*command)
        assert await reader.wait() == 0


async def test_failures_75_migrating_and_the_lease_work_too(pooled_url: str) -> None:
    await migrate(pooled_url)
    async with open_database(pooled_url) as first, open_database(pooled_url) as second:
        await check_schema(first)
        async with market_lease(first, MARKET):
            await first.ping()
            with pytest.raises(MarketTaken):
                async with market_lease(second, MARKET):
                    pytest.fail("two trainers")
        async with market_lease(second, MARKET):
            pass


async def test_failures_75_without_the_switch_it_does_not_work(pooled_url: str) -> None:
    """If this fails, the switch is no longer needed."""
    async with open_database(pooled_url.removesuffix("?pgbouncer=true")) as database:
        with pytest.raises((StoreUnavailable, exc.DBAPIError), match="unsupported startup parameter"):
            await database.ping()
