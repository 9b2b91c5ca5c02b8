"""The engine: what it accepts, what it promises of SQLite, and how trouble of both databases shows."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, exc, text

from service.ports import ConfigurationError, RecordBatch, StoreUnavailable
from service.storage import Database, SqlRecordStore, open_database, records
from service.storage.address import parse_url
from tests.builders import MARKET, make_batch, make_step

SLOW_QUERY = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n",
    "postgresql": "SELECT pg_sleep(30)",
}


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as opened:
        yield opened


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "livewick.db",
        "mysql://u:s3cret@h/d",
        "postgresql+psycopg2://u:s3cret@h/d",
        "postgresql://u:s3cret@h:port/d",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite+aiosqlite:///file:x?mode=memory&uri=true",
        "sqlite:///x.db?timeout=3",
        "postgresql://u:s3cret@h/d?connect_timeout=3",
        "postgresql://u:s3cret@h/d?sslmode=sometimes",
        "postgresql://u:s3cret@h/d?target_session_attrs=fast",
        "postgresql://u:s3cret@/d?host=a:1&host=b",
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_password(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL") as refused:
        parse_url(bad)
    assert "s3cret" not in str(refused.value)


def test_an_unknown_parameter_is_named_beside_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown parameter, speed, tempo; known are .*sslmode"):
        parse_url("postgresql://u:s3cret@h/d?tempo=s3cret&speed=1&sslmode=require")


def test_urls_as_people_write_them_are_understood() -> None:
    heroku = parse_url("postgres://u:s3cret@h/d?sslmode=require&pgbouncer=true")
    assert heroku.url.drivername == "postgresql+asyncpg"
    assert dict(heroku.url.query) == {"ssl": "require"}
    assert heroku.pgbouncer
    assert not heroku.is_sqlite
    assert "s3cret" not in str(heroku)
    local = parse_url("sqlite:///some folder/ü.db")
    assert local.url.drivername == "sqlite+aiosqlite"
    assert local.path == Path("some folder/ü.db").absolute()


async def test_sqlite_is_opened_so_that_a_commit_is_on_the_disk(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, database.writing() as connection:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        values = [(await connection.execute(text(f"PRAGMA {name}"))).scalar() for name in pragmas]
    assert values == ["wal", 2, 1, 5000]


async def test_the_folder_of_an_sqlite_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "no folder yet" / "ünder" / "x.db"
    async with open_database(f"sqlite+aiosqlite:///{path}") as database:
        await database.ping()
    assert path.exists()


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match="did not open"):
        async with open_database(f"sqlite+aiosqlite:///{tmp_path}/file/x.db"):
            pass


async def test_a_file_that_is_no_database_is_trouble_not_a_bug(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"certainly not a database" * 100)
    async with open_database(f"sqlite+aiosqlite:///{tmp_path}/x.db") as database:
        with pytest.raises(StoreUnavailable, match="not a database"):
            await database.ping()


async def test_sql_that_does_not_fit_the_schema_is_a_bug_not_trouble(database: Database) -> None:
    with pytest.raises(exc.DBAPIError):
        async with database.reading() as connection:
            await connection.execute(text("SELECT nonsense FROM steps"))


async def test_a_read_ends_in_time_and_the_database_is_usable_afterwards(database: Database) -> None:
    hasty = replace(database, read_timeout_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        async with hasty.reading() as connection:
            await connection.execute(text(SLOW_QUERY[connection.dialect.name]))
    assert time.monotonic() - started < 25
    await database.ping()


async def test_failures_77_cancelled_reads_leave_no_connection_behind(database: Database) -> None:
    async def slow_read(begun: asyncio.Event) -> None:
        async with database.reading() as connection:
            begun.set()
            await connection.execute(text(SLOW_QUERY[connection.dialect.name]))

    for _ in range(8):
        begun = asyncio.Event()
        task = asyncio.create_task(slow_read(begun))
        await begun.wait()
        await asyncio.wait([task], timeout=0.02)  # let the query begin; whether it did, nothing below depends on it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await asyncio.gather(*(database.ping() for _ in range(10)))


async def test_failures_83_a_number_that_is_none_costs_only_itself(database: Database) -> None:
    store = SqlRecordStore(database)
    run = await store.open_run(MARKET, {}, 0)
    steps = [make_step(index) for index in range(1000)]
    steps[500] = make_step(500, grad_norm=float("nan"), train_loss=float("inf"), loss=1.0, skipped="nonfinite")
    await store.write(run, RecordBatch(steps=steps))
    stored = await store.steps(MARKET, None, None, 10_000)
    assert stored[500] == make_step(500, grad_norm=None, train_loss=None, loss=1.0, skipped="nonfinite")
    assert len(stored) == 1000
    (point,) = await store.series(MARKET, ["grad_norm", "train_loss"], 86_400, None, None, 1)
    assert point.values == {"grad_norm": 2.5, "train_loss": pytest.approx(0.9)}


async def test_a_series_over_years_is_told_a_bounded_part_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SERIES_STEPS", 30)
    monkeypatch.setattr(records, "SERIES_STEPS_AT_ONCE", 20)
    store = SqlRecordStore(database)
    run = await store.open_run(MARKET, {}, 0)
    await store.write(run, RecordBatch(steps=[make_step(index) for index in range(100)]))
    counts, start = [], None
    while part := await store.series(MARKET, ["loss"], 10, start, None, 1000):
        counts.append([point.count for point in part])
        start = part[-1].open_time + 10_000
    assert counts == [[10] * 4, [10] * 4, [10] * 2]
    whole = await store.series(MARKET, ["loss"], 604_800, None, None, 1000)
    assert [point.count for point in whole] == [100], "a bucket is never cut"


@pytest.mark.parametrize("value", ["9e999", "-9e999", "'NaN'"])
async def test_failures_83_the_schema_refuses_numbers_that_are_none(database: Database, value: str) -> None:
    if database.address.is_sqlite and "NaN" in value:
        pytest.skip("SQLite has no NaN")
    store = SqlRecordStore(database)
    await store.write(await store.open_run(MARKET, {}, 0), make_batch(0, 1))
    literal = (
        value if database.address.is_sqlite else f"'{value}'::float8".replace("''", "'").replace("9e999", "Infinity")
    )
    for table, column in (("steps", "loss"), ("candles", "close"), ("predictions", "p_up"), ("steps", "lag_ms")):
        with pytest.raises(exc.IntegrityError, match=f"ck_{table}_{column}_finite"):
            async with database.writing() as connection:
                await connection.execute(text(f"UPDATE {table} SET {column} = {literal}"))  # noqa: S608


async def test_a_full_disk_is_trouble_and_nothing_of_the_batch_stays(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        limits = ["PRAGMA max_page_count = 10", "PRAGMA max_page_count = 1000000"]

        def set_limit(connection: object, *_: object) -> None:
            connection.execute(limits[0])  # type: ignore[attr-defined]

        event.listen(database.engine.sync_engine, "checkout", set_limit)
        with pytest.raises(StoreUnavailable, match="full"):
            await store.write(run, make_batch(0, 2000))
        limits.pop(0)
        assert await store.candles(MARKET, None, None, 10) == []
        await store.write(run, make_batch(0, 2000))
        assert len(await store.steps(MARKET, None, None, 10_000)) == 2000


async def test_a_database_locked_by_another_program_is_trouble(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        event.listen(
            database.engine.sync_engine, "checkout", lambda connection, *_: connection.execute("PRAGMA busy_timeout=50")
        )
        other = sqlite3.connect(str(database.address.path), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.write(run, make_batch())
        assert await store.candles(MARKET, None, None, 10) == []
        other.close()
        await store.write(run, make_batch())


async def test_a_transaction_that_reads_before_it_writes_is_not_overtaken(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as first, open_database(sqlite_url) as second:
        async with first.writing() as connection:
            await connection.execute(text("SELECT count(*) FROM runs"))
            other = asyncio.create_task(SqlRecordStore(second).open_run(MARKET, {}, 0))
            await asyncio.wait([other], timeout=0.1)  # time enough to overtake, if it could
            await connection.execute(text("INSERT INTO runs (market, config, started_at) VALUES ('other', '{}', 0)"))
        assert (await other).id == 2
