"""PostgreSQL away, hanging, read-only, restarted, crashed: said in time, and everything is stored afterwards, once."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import text

from service.ports import ConfigurationError, StoreUnavailable
from service.storage import SqlCheckpointStore, SqlRecordStore, check_schema, market_lease, migrate, open_database
from tests.builders import MARKET, at, make_batch, make_candle, make_checkpoint
from tests.support.postgres import PostgresCluster

pytestmark = pytest.mark.postgres
DISK_FULL = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
    END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON steps EXECUTE FUNCTION full_disk();
"""
TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = :name"


async def test_every_call_says_unavailable_while_nothing_listens(postgres_cluster: PostgresCluster) -> None:
    async with open_database("postgresql://u:s3cret@127.0.0.1:9/livewick") as database:
        for call in (
            database.ping(),
            SqlRecordStore(database).latest_run(MARKET),
            SqlRecordStore(database).open_run(MARKET, {}, 0),
        ):
            with pytest.raises(StoreUnavailable) as error:
                await call
            assert "s3cret" not in str(error.value)


async def test_a_wrong_password_or_a_missing_database_is_trouble(postgres_cluster: PostgresCluster) -> None:
    for url in (postgres_cluster.url(password="wrong"), postgres_cluster.url("no_such_database")):
        async with open_database(url) as database:
            with pytest.raises(StoreUnavailable, match=r"password authentication failed|does not exist"):
                await database.ping()
            with pytest.raises(ConfigurationError, match=r"DATABASE_URL: .*(password authenticat|does not exist)"):
                await check_schema(database)
        with pytest.raises(ConfigurationError, match=r"DATABASE_URL: .*(password authentication|does not exist)"):
            await migrate(url)


async def test_a_password_changed_under_a_running_service_is_trouble_until_it_is_right_again(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    name = postgres_url.rsplit("/", 1)[1]
    postgres_cluster.sql("CREATE ROLE changing LOGIN SUPERUSER PASSWORD 'before'")
    async with open_database(postgres_cluster.url(name, "changing", "before")) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        postgres_cluster.sql("ALTER ROLE changing PASSWORD 'after'")
        postgres_cluster.terminate_sessions(name)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="password authentication failed"):
                await store.write(run, make_batch())
        postgres_cluster.sql("ALTER ROLE changing PASSWORD 'before'")
        await store.write(run, make_batch())
        assert await store.candles(MARKET, None, None, 10) == [make_candle(0)]
    postgres_cluster.sql("DROP ROLE changing")


async def test_a_full_disk_is_trouble_until_there_is_room(postgres_cluster: PostgresCluster, postgres_url: str) -> None:
    """What PostgreSQL says when the disk is full, said by a trigger: SQLSTATE 53100."""
    name = postgres_url.rsplit("/", 1)[1]
    async with open_database(postgres_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        postgres_cluster.sql(DISK_FULL, name)
        with pytest.raises(StoreUnavailable, match="No space left on device"):
            await store.write(run, make_batch(0, 3))
        postgres_cluster.sql("DROP TRIGGER full_disk ON steps; DROP FUNCTION full_disk", name)
        await store.write(run, make_batch(0, 3))
        assert len(await store.steps(MARKET, None, None, 10)) == 3


async def test_a_read_only_database_is_trouble_until_it_is_writable(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    name = postgres_url.rsplit("/", 1)[1]
    async with open_database(postgres_url) as database:
        run = await SqlRecordStore(database).open_run(MARKET, {}, 0)
    postgres_cluster.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with open_database(postgres_url) as database:
        store = SqlRecordStore(database)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.write(run, make_batch())
        assert await store.latest_run(MARKET) == run
        postgres_cluster.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        postgres_cluster.terminate_sessions(name)
        await store.write(run, make_batch())


@pytest.mark.parametrize("timeouts", [(0.5, 1.0), pytest.param((3.5, 8.0), marks=pytest.mark.slow)])
async def test_a_database_that_hangs_is_noticed_in_time_and_used_again(
    postgres_cluster: PostgresCluster, postgres_url: str, timeouts: tuple[float, float]
) -> None:
    async with open_database(postgres_url, *timeouts) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        postgres_cluster.pause()
        try:
            started = time.monotonic()
            outcomes = await asyncio.gather(
                store.ping(),
                store.steps(MARKET, None, None, 10),
                store.write(run, make_batch()),
                SqlCheckpointStore(database).save(run, make_checkpoint()),
                return_exceptions=True,
            )
            took = time.monotonic() - started
        finally:
            postgres_cluster.resume()
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert took < timeouts[1] + 25
        await store.write(run, make_batch())
        assert await store.candles(MARKET, None, None, 10) == [make_candle(0)]


async def test_failures_61_closing_does_not_wait_for_a_database_that_hangs(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    async with open_database(postgres_url) as database, market_lease(database, MARKET):
        await asyncio.gather(*(database.ping() for _ in range(5)))
        postgres_cluster.pause()
        started = time.monotonic()
    took = time.monotonic() - started
    postgres_cluster.resume()
    assert took < 25


@pytest.mark.slow
async def test_fifty_crashes_of_the_database_cost_nothing_stored(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    async with open_database(postgres_url) as database, market_lease(database, MARKET):
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        written, crashes_over, goal = 0, False, asyncio.Event()

        async def write_until_told() -> None:
            nonlocal written
            while not crashes_over:
                try:
                    await store.write(run, make_batch(written, 3))
                    written += 3
                    if written % 9 == 0:
                        goal.set()
                except StoreUnavailable:
                    await asyncio.sleep(0.01)

        writing = asyncio.create_task(write_until_told())
        for _ in range(50):
            goal.clear()
            await goal.wait()
            await asyncio.to_thread(postgres_cluster.restart, "immediate")
        crashes_over = True
        await writing
        times = [row.open_time for row in await store.steps(MARKET, None, None, 100_000)]
        assert times == [at(index) for index in range(written)]


async def test_a_restarted_database_is_used_again(postgres_cluster: PostgresCluster, postgres_url: str) -> None:
    async with open_database(postgres_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        await store.write(run, make_batch(0, 2))
        postgres_cluster.stop("immediate")
        with pytest.raises(StoreUnavailable):
            await store.write(run, make_batch(2, 2))
        with pytest.raises(StoreUnavailable):
            await store.ping()
        postgres_cluster.start()
        await store.write(run, make_batch(2, 2))
        assert [row.open_time for row in await store.candles(MARKET, None, None, 10)] == [at(i) for i in range(4)]


async def test_failures_73_killed_backends_cost_a_retry_and_nothing_else(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    name = postgres_url.rsplit("/", 1)[1]
    retries = 0
    async with open_database(postgres_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)

        async def write_everything() -> None:
            nonlocal retries
            for first in range(0, 180, 3):
                while True:
                    try:
                        await store.write(run, make_batch(first, 3))
                        break
                    except StoreUnavailable:
                        retries += 1

        writing = asyncio.create_task(write_everything())
        kills = 0
        async with open_database(postgres_cluster.url()) as other, other.reading() as connection:
            while not writing.done():
                kills += (await connection.execute(text(TERMINATE), {"name": name})).scalar_one()
                await asyncio.wait([writing], timeout=0.05)
        await writing
        assert kills > 3
        assert [row.open_time for row in await store.steps(MARKET, None, None, 1000)] == [at(i) for i in range(180)]
        await asyncio.gather(*(database.ping() for _ in range(10)))
        assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
