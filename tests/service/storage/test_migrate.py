"""Migrations: by whoever comes first, all or nothing, with data, and never by a program that is too old."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from filelock import FileLock
from sqlalchemy import CheckConstraint, Connection, inspect, text

from service.ports import StoreUnavailable
from service.storage import SchemaMismatch, SqlRecordStore, check_schema, migrate, open_database
from service.storage import migrate as migrate_function
from service.storage.migrate import LOCK_KEY, check_schema_at, downgrade, upgrade
from service.storage.tables import metadata
from tests.builders import MARKET, make_batch
from tests.support.postgres import PostgresCluster

postgres = pytest.mark.postgres
module = sys.modules[migrate_function.__module__]
LATER = """
from alembic import op
import sqlalchemy as sa

revision, down_revision, branch_labels, depends_on = "later", "0001", None, None


def upgrade():
    with op.batch_alter_table("steps") as table:
        table.add_column(sa.Column("mood", sa.String, server_default="calm"))
    FAIL


def downgrade():
    with op.batch_alter_table("steps") as table:
        table.drop_column("mood")
"""
MIGRATE = "import asyncio, sys; from service.storage import migrate; asyncio.run(migrate(sys.argv[1]))"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path}/new é.db"
        return
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    with cluster.database(migrated=False) as url:
        yield url


@pytest.fixture
def later_version(tmp_path: Path) -> Path:
    """The migrations of a program one version on from this one."""
    folder = tmp_path / "100% later"
    shutil.copytree(module.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9999_later.py").write_text(LATER.replace("FAIL", ""))
    return folder


async def revision(url: str) -> str | None:
    """Return the schema's revision."""
    async with open_database(url) as database, database.reading() as connection:
        return await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())


async def columns(url: str, table: str) -> list[str]:
    """Return a table's columns."""
    async with open_database(url) as database, database.reading() as connection:
        return await connection.run_sync(lambda sync: [found["name"] for found in inspect(sync).get_columns(table)])


async def tables(url: str) -> list[str]:
    """Return the names of all tables."""
    async with open_database(url) as database, database.reading() as connection:
        return await connection.run_sync(lambda sync: sorted(inspect(sync).get_table_names()))


async def test_migrations_make_exactly_the_tables_the_code_knows(url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_object": no_time_index})
        return list(compare_metadata(context, metadata))

    def checks(connection: Connection) -> dict[str, set[str | None]]:
        found = {name: inspect(connection).get_check_constraints(name) for name in metadata.tables}
        return {name: {check["name"] for check in rows} for name, rows in found.items()}

    async with open_database(url) as database, database.reading() as connection:
        assert await connection.run_sync(differences) == []
        expected = {
            name: {str(rule.name) for rule in table.constraints if isinstance(rule, CheckConstraint)}
            for name, table in metadata.tables.items()
        }
        assert await connection.run_sync(checks) == expected
        assert "ck_steps_loss_finite" in expected["steps"]


def no_time_index(_: object, name: str | None, kind: str, *__: object) -> bool:
    """Leave out what exists on PostgreSQL only, for people."""
    return not (kind == "index" and str(name).endswith("_time"))


async def test_migrating_again_changes_nothing(url: str) -> None:
    before = await tables(url)
    await migrate(url)
    assert await tables(url) == before
    assert before == ["alembic_version", "candles", "checkpoints", "events", "predictions", "runs", "steps"]


async def test_failures_79_many_starters_at_once_all_succeed(empty_url: str) -> None:
    await asyncio.gather(*(migrate(empty_url) for _ in range(4)))
    await check_schema_at(empty_url)


@pytest.mark.slow
async def test_failures_79_many_processes_at_once_all_succeed(empty_url: str) -> None:
    for _ in range(3):
        started = [await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, empty_url) for _ in range(4)]
        assert [await process.wait() for process in started] == [0, 0, 0, 0]
        await check_schema_at(empty_url)
        await downgrade(empty_url, "base")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_migration_killed_at_any_instant_is_done_again(empty_url: str) -> None:
    rng = random.Random(3)
    unfinished = 0
    for _ in range(10):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, empty_url)
        try:
            await asyncio.wait_for(process.wait(), rng.uniform(0.5, 2.5))
        except TimeoutError:
            process.kill()
            await process.wait()
        unfinished += process.returncode != 0
        await upgrade(empty_url, wait_seconds=10)
        await check_schema_at(empty_url)
        await downgrade(empty_url, "base")
    assert unfinished


async def test_a_wait_for_another_migration_is_bounded(empty_url: str, tmp_path: Path) -> None:
    if empty_url.startswith("sqlite"):
        with FileLock(tmp_path / "new é.db.migrate.lock"), pytest.raises(StoreUnavailable, match="another process"):
            await upgrade(empty_url, wait_seconds=0.2)
    else:
        async with open_database(empty_url) as database, database.writing() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK_KEY})"))
            with pytest.raises(StoreUnavailable, match=r"another process .* waited 0.2 s"):
                await upgrade(empty_url, wait_seconds=0.2)
    await upgrade(empty_url, wait_seconds=0.2)


async def test_a_database_without_tables_is_told_from_one_that_fits(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="run `livewick migrate`"):
        await check_schema_at(empty_url)
    await migrate(empty_url)
    await check_schema_at(empty_url)


async def test_data_survive_going_to_a_later_version_and_back(
    url: str, later_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(0, 500)
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        await store.write(await store.open_run(MARKET, {}, 0), batch)
    with monkeypatch.context() as patch:
        patch.setattr(module, "MIGRATIONS", later_version)
        with pytest.raises(SchemaMismatch, match="older than this program"):
            await check_schema_at(url)
        await migrate(url)
        assert "mood" in await columns(url, "steps")
        async with open_database(url) as database:
            assert await SqlRecordStore(database).steps(MARKET, None, None, 1000) == batch.steps
        await downgrade(url, "0001")
    async with open_database(url) as database:
        await check_schema(database)
        store = SqlRecordStore(database)
        assert await store.steps(MARKET, None, None, 1000) == batch.steps
        assert await store.candles(MARKET, None, None, 1000) == batch.candles


async def test_a_program_that_is_too_old_refuses_the_database_and_leaves_it_alone(
    url: str, later_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "MIGRATIONS", later_version)
        await migrate(url)
    for attempt in (migrate(url), check_schema_at(url), downgrade(url, "base")):
        with pytest.raises(SchemaMismatch, match=r"schema later is newer than this program, which knows up to 0001"):
            await attempt
    assert await revision(url) == "later"


async def test_a_migration_that_fails_leaves_nothing_behind(
    url: str, later_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (later_version / "versions" / "9999_later.py").write_text(LATER.replace("FAIL", "raise RuntimeError('on purpose')"))
    before = await columns(url, "steps")
    monkeypatch.setattr(module, "MIGRATIONS", later_version)
    with pytest.raises(RuntimeError, match="on purpose"):
        await migrate(url)
    assert await columns(url, "steps") == before
    assert await revision(url) == "0001"


async def test_going_back_to_nothing_and_forth_works(url: str) -> None:
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        await store.write(await store.open_run(MARKET, {}, 0), make_batch(0, 10))
    await downgrade(url, "base")
    assert await tables(url) == ["alembic_version"]
    await migrate(url)
    async with open_database(url) as database:
        await check_schema(database)
        assert await SqlRecordStore(database).steps(MARKET, None, None, 10) == []


async def test_the_working_directory_does_not_matter(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await migrate(empty_url)
    await check_schema_at(empty_url)


@pytest.mark.slow
async def test_the_alembic_command_works_through_the_same_door(empty_url: str) -> None:
    command = [sys.executable, "-m", "alembic", "-x", f"url={empty_url}", "upgrade", "head"]
    process = await asyncio.create_subprocess_exec(*command, cwd=module.MIGRATIONS.parent)
    assert await process.wait() == 0
    await check_schema_at(empty_url)


@postgres
async def test_people_read_times_in_a_view_that_stays_fast(postgres_url: str) -> None:
    async with open_database(postgres_url) as database:
        store = SqlRecordStore(database)
        await store.write(await store.open_run(MARKET, {}, 0), make_batch(0, 500))
        recent = "SELECT time, loss FROM steps_by_time WHERE time >= '2023-11-14 22:20:00+00' ORDER BY time"
        async with database.reading() as connection:
            rows = (await connection.execute(text(recent))).all()
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
            plan = "\n".join((await connection.execute(text(f"EXPLAIN {recent}"))).scalars())
    assert str(rows[0].time) == "2023-11-14 22:20:00+00:00"
    assert len(rows) == 100
    assert "ix_steps_time" in plan
