"""Checkpoints in the database and in a folder: damaged ones are set aside, never offered, never fatal."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from service.ports import Run, StoreUnavailable
from service.storage import Database, SqlCheckpointStore, SqlRecordStore, open_database
from service.storage.tables import checkpoints
from tests.builders import MARKET, at, make_checkpoint
from tests.contracts import CHECKPOINT_STORE_CHECKS, CheckpointCheck


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as opened:
        yield opened


@pytest.fixture
async def run(database: Database) -> Run:
    return await SqlRecordStore(database).open_run(MARKET, {}, 0)


async def damage(database: Database, index: int, data: bytes) -> None:
    """Change a stored checkpoint's content behind the store's back."""
    async with database.writing() as connection:
        await connection.execute(update(checkpoints).where(checkpoints.c.open_time == at(index)).values(data=data))


async def reasons(database: Database) -> list[str | None]:
    """Return why each stored checkpoint was set aside, oldest first."""
    async with database.reading() as connection:
        query = select(checkpoints.c.set_aside).order_by(checkpoints.c.open_time)
        return list((await connection.execute(query)).scalars())


async def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(database: Database, run: Run) -> None:
    store = SqlCheckpointStore(database)
    for index in range(4):
        await store.save(run, make_checkpoint(index, data=bytes(1000)))
    await damage(database, 3, bytes(999) + b"\1")
    await damage(database, 2, bytes(999))
    assert await store.latest(run) == make_checkpoint(1, data=bytes(1000))
    assert await reasons(database) == [None, None, *["its content does not match its hash"] * 2]


async def test_a_run_whose_checkpoints_are_all_damaged_starts_without_one(database: Database, run: Run) -> None:
    store = SqlCheckpointStore(database)
    await store.save(run, make_checkpoint(0))
    await damage(database, 0, b"")
    assert await store.latest(run) is None


async def test_no_mutated_content_is_ever_handed_out(database: Database, run: Run) -> None:
    store = SqlCheckpointStore(database)
    rng = random.Random(1)
    good = make_checkpoint(0, data=rng.randbytes(2000))
    await store.save(run, good)
    for index in range(1, 31):
        data = bytearray(rng.randbytes(2000))
        await store.save(run, make_checkpoint(index, loss=2.0, data=bytes(data)))
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
        await damage(database, index, bytes(data[: rng.choice([len(data), place])]))
        assert await store.latest(run) == good


async def test_a_lost_or_damaged_file_is_set_aside_like_a_damaged_row(
    database: Database, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "großer Ordner"
    store = SqlCheckpointStore(database, folder_url=str(folder), inline_bytes=10)
    for index in range(4):
        await store.save(run, make_checkpoint(index, data=bytes(1000 + index)))
    files = sorted(folder.iterdir())
    files[3].unlink()
    files[2].write_bytes(bytes(999))
    # Any machine that reaches the database and the folder can go on, whatever it was told about folders.
    assert await SqlCheckpointStore(database).latest(run) == make_checkpoint(1, data=bytes(1001))
    assert (await reasons(database))[2:] == ["its content does not match its hash", "its file is gone"]


async def test_small_checkpoints_stay_in_the_database_and_old_files_go(
    database: Database, run: Run, tmp_path: Path
) -> None:
    store = SqlCheckpointStore(database, folder_url=f"file://{tmp_path}/files", inline_bytes=10)
    await store.save(run, make_checkpoint(0, loss=99.0, data=b"small"))
    assert not (tmp_path / "files").exists()
    for index in range(1, 9):
        await store.save(run, make_checkpoint(index, data=bytes(100), loss=float(index)))
    assert [file.name.split("-")[1] for file in sorted((tmp_path / "files").iterdir())] == [
        str(at(index)) for index in (1, 4, 5, 6, 7, 8)
    ]


async def test_saving_over_a_checkpoint_leaves_one_file(database: Database, run: Run, tmp_path: Path) -> None:
    store = SqlCheckpointStore(database, folder_url=str(tmp_path / "files"), inline_bytes=10)
    for fill in b"ab":
        await store.save(run, make_checkpoint(1, data=bytes([fill]) * 100))
        await store.save(run, make_checkpoint(1, data=bytes([fill]) * 100))
    (file,) = sorted((tmp_path / "files").iterdir())
    assert file.read_bytes() == b"b" * 100
    assert await store.latest(run) == make_checkpoint(1, data=b"b" * 100)


async def test_a_folder_that_cannot_be_written_is_trouble_and_stores_nothing(
    database: Database, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = SqlCheckpointStore(database, folder_url=str(tmp_path / "file"), inline_bytes=10)
    with pytest.raises(StoreUnavailable, match="did not write"):
        await store.save(run, make_checkpoint(0, data=bytes(100)))
    assert await store.latest(run) is None


@pytest.mark.parametrize("check", CHECKPOINT_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_the_contract_holds_for_files(sqlite_url: str, tmp_path: Path, check: CheckpointCheck) -> None:
    async with open_database(sqlite_url) as database:
        records = SqlRecordStore(database)
        runs = [await records.open_run(market, {}, 0) for market in (MARKET, "simulated:BTC/USDT")]
        await check(SqlCheckpointStore(database, str(tmp_path / "files"), inline_bytes=0), *runs)


async def test_eight_mebibytes_are_stored_and_read(database: Database, run: Run) -> None:
    store = SqlCheckpointStore(database)
    large = make_checkpoint(0, data=random.Random(0).randbytes(8 * 2**20))
    await store.save(run, large)
    assert await store.latest(run) == large
