"""What the page for operators (migrations/README.md) says, done as it says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from service.ports import RecordStore, Run, StoreUnavailable
from service.storage import (
    SqlCheckpointStore,
    SqlRecordStore,
    check_integrity,
    check_schema,
    market_lease,
    migrate,
    open_database,
)
from service.storage.migrate import MIGRATIONS
from tests.builders import MARKET, make_batch, make_checkpoint
from tests.support.postgres import PostgresCluster

postgres = pytest.mark.postgres
PAGE = (MIGRATIONS / "README.md").read_text()


def block(name: str) -> str:
    """Return a code block of the page by the word behind its language."""
    found = re.search(rf"^```\w+ {name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


async def run_block(name: str, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a block of the page as a person would, in ``folder``."""
    script = block(name).replace(".venv/bin/python", sys.executable)
    shell = await asyncio.create_subprocess_exec("/bin/sh", "-ec", script, cwd=folder, env=environment)
    assert await shell.wait() == 0


async def write_on(store: RecordStore, run: Run, stop: asyncio.Event) -> None:
    """Write batch after batch until told to stop."""
    first = 1000
    while not stop.is_set():
        await store.write(run, make_batch(first, 10))
        first += 10


async def test_an_sqlite_backup_taken_while_writing_is_restored(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    (folder / "data").mkdir(parents=True)
    path = folder / "data" / "livewick.db"
    url = f"sqlite+aiosqlite:///{path}"
    await migrate(url)
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        await store.write(run, make_batch(0, 1000))
        await SqlCheckpointStore(database).save(run, make_checkpoint(999))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_on(store, run, stop))
            await run_block("sqlite-backup", folder)
            stop.set()
    path.write_bytes(b"lost in a crash")
    path.with_name("livewick.db-wal").write_bytes(b"stale")
    await run_block("sqlite-restore", folder)
    assert await check_integrity(url)
    await assert_restored(url)


@postgres
async def test_a_postgresql_backup_taken_while_writing_is_restored(
    postgres_cluster: PostgresCluster, tmp_path: Path
) -> None:
    postgres_cluster.sql("CREATE DATABASE livewick")
    url = postgres_cluster.url("livewick")
    await migrate(url)
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        await store.write(run, make_batch(0, 1000))
        await SqlCheckpointStore(database).save(run, make_checkpoint(999))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_on(store, run, stop))
            await run_block("postgres-backup", tmp_path, postgres_cluster.environment())
            stop.set()
    await run_block("postgres-restore", tmp_path, postgres_cluster.environment())
    await assert_restored(postgres_cluster.url("livewick_restored"))
    for name in ("livewick", "livewick_restored"):
        postgres_cluster.sql(f"DROP DATABASE {name}")


async def assert_restored(url: str) -> None:
    """Check that all from before the backup is there, nothing of a transaction is half there, and writing goes on."""
    async with open_database(url) as database:
        await check_schema(database)
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        assert (await store.steps(MARKET, None, None, 10_000))[:1000] == make_batch(0, 1000).steps
        async with database.reading() as connection:
            counted = [
                (await connection.execute(text(f"SELECT count(*) FROM {name}"))).scalar_one()  # noqa: S608
                for name in ("steps", "candles", "predictions")
            ]
        steps = counted[0]
        assert counted == [steps] * 3
        assert steps >= 1000
        assert await SqlCheckpointStore(database).latest(run) == make_checkpoint(999)
        await store.write(run, make_batch(steps, 10))
        assert len(await store.steps(MARKET, None, None, 100_000)) == steps + 10


@postgres
async def test_the_service_works_with_the_least_of_rights(postgres_cluster: PostgresCluster) -> None:
    with postgres_cluster.database(migrated=False) as url:
        name = url.rsplit("/", 1)[1]
        for statement in block("roles").split(";\n"):
            if statement.strip():
                postgres_cluster.sql(statement, name)
        await migrate(postgres_cluster.url(name, "livewick_owner", "change-me"))
        app = postgres_cluster.url(name, "livewick_app", "change-me-too")
        await migrate(app)  # what `livewick serve` does first: nothing is to be done, so nothing is refused
        async with open_database(app) as database, market_lease(database, MARKET):
            await check_schema(database)
            store = SqlRecordStore(database)
            run = await store.open_run(MARKET, {}, 0)
            await store.write(run, make_batch(0, 10))
            await SqlCheckpointStore(database).save(run, make_checkpoint())
            assert await store.prune(2**62) > 0
            with pytest.raises(StoreUnavailable, match="must be owner"):
                async with database.writing() as connection:
                    await connection.execute(text("DROP TABLE steps"))
        postgres_cluster.sql("REASSIGN OWNED BY livewick_owner TO livewick; DROP OWNED BY livewick_owner", name)
        postgres_cluster.sql("DROP OWNED BY livewick_app", name)
    postgres_cluster.sql("DROP ROLE livewick_app")
    postgres_cluster.sql("DROP ROLE livewick_owner")


def test_shell_blocks_are_valid() -> None:
    for name in ("sqlite-backup", "sqlite-restore", "postgres-backup", "postgres-restore"):
        assert subprocess.run(["/bin/sh", "-n"], input=block(name), text=True).returncode == 0
