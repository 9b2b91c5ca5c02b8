"""One trainer per market: whoever comes second is refused, and a lost lease is noticed before the next write."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from service.ports import StoreUnavailable
from service.storage import MarketTaken, SqlCheckpointStore, SqlRecordStore, market_lease, open_database
from service.storage.lease import PostgresLease
from tests.builders import MARKET, make_batch, make_candle, make_checkpoint
from tests.support.postgres import PostgresCluster

postgres = pytest.mark.postgres
HOLD = """
import asyncio, sys
from service.storage import market_lease, open_database

async def hold():
    async with open_database(sys.argv[1]) as database, market_lease(database, sys.argv[2]):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


async def test_failures_59_the_second_trainer_of_a_market_is_refused_until_the_first_one_ends(url: str) -> None:
    async with open_database(url) as first, open_database(url) as second:
        async with market_lease(first, MARKET):
            with pytest.raises(MarketTaken):
                async with market_lease(second, MARKET):
                    pytest.fail("two trainers")
            with pytest.raises(MarketTaken):
                async with market_lease(first, MARKET):
                    pytest.fail("two trainers in one process")
            await SqlRecordStore(second).ping()
        async with market_lease(second, MARKET):
            pass


async def test_markets_of_one_process_share_the_database(url: str) -> None:
    async with open_database(url) as database:
        async with market_lease(database, MARKET), market_lease(database, "simulated:BTC/USDT"):
            pass
        async with market_lease(database, MARKET):
            pass


async def test_a_second_process_on_the_same_file_is_refused_whatever_its_market(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as first, open_database(sqlite_url) as second, market_lease(first, MARKET):
        with pytest.raises(MarketTaken, match=r"another Livewick is using .*livewick\.db"):
            async with market_lease(second, "simulated:BTC/USDT"):
                pytest.fail("two trainers on one file")


async def test_a_killed_trainer_leaves_the_market_free(url: str) -> None:
    command = [sys.executable, "-c", HOLD, url, MARKET]
    holder = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    async with open_database(url) as database:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        with pytest.raises(MarketTaken):
            async with market_lease(database, MARKET):
                pytest.fail("two trainers")
        holder.kill()
        await holder.wait()
        async with asyncio.timeout(60):
            while True:
                try:
                    async with market_lease(database, MARKET):
                        break
                except MarketTaken:
                    await asyncio.sleep(0.01)


async def test_writing_without_a_lease_is_possible_and_with_one_too(url: str) -> None:
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        await store.write(run, make_batch(0))
        async with market_lease(database, MARKET):
            await store.write(run, make_batch(1))
        assert await store.candles(MARKET, None, None, 10) == [make_candle(0), make_candle(1)]


@postgres
async def test_a_lease_lost_with_its_connection_is_taken_again_before_the_next_write(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    async with open_database(postgres_url) as database, open_database(postgres_url) as rival:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        async with market_lease(database, MARKET):
            postgres_cluster.terminate_sessions(postgres_url.rsplit("/", 1)[1])
            await write_until_stored(store, run)
            with pytest.raises(MarketTaken):
                async with market_lease(rival, MARKET):
                    pytest.fail("two trainers")


@postgres
async def test_a_trainer_that_lost_its_market_to_another_may_not_write(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    async with open_database(postgres_url) as database, open_database(postgres_url) as rival:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        async with market_lease(database, MARKET):
            postgres_cluster.terminate_sessions(postgres_url.rsplit("/", 1)[1])
            async with market_lease(rival, MARKET):
                with pytest.raises(MarketTaken):
                    await write_until_stored(store, run)
                with pytest.raises(MarketTaken):
                    await SqlCheckpointStore(database).save(run, make_checkpoint())
            await write_until_stored(store, run)


@postgres
async def test_a_lease_whose_old_session_lives_on_is_taken_from_that_session(postgres_url: str) -> None:
    """A network that drops a connection leaves its session, and our lock, on the server for a while."""
    async with open_database(postgres_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        async with market_lease(database, MARKET) as lease:
            assert isinstance(lease, PostgresLease)
            ghost, lease._connection = lease._connection, None
            await write_until_stored(store, run)
            assert ghost is not None
            await ghost.invalidate()


@postgres
async def test_an_outage_of_the_database_does_not_cost_the_lease(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    async with open_database(postgres_url, read_timeout_seconds=1.0) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        async with market_lease(database, MARKET):
            postgres_cluster.stop("immediate")
            with pytest.raises(StoreUnavailable):
                await store.write(run, make_batch())
            postgres_cluster.start()
            await write_until_stored(store, run)
            postgres_cluster.pause()
            with pytest.raises(StoreUnavailable):
                await store.write(run, make_batch())
            postgres_cluster.resume()
            await write_until_stored(store, run)


async def write_until_stored(store: SqlRecordStore, run: object) -> None:
    """Write as the recorder does: again, while the database says that it is unavailable."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.write(run, make_batch())  # type: ignore[arg-type]
                return
            except StoreUnavailable:
                await asyncio.sleep(0.01)
