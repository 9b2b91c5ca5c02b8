"""A damaged SQLite file is said so at start, with what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.ports import ConfigurationError, StoreUnavailable
from service.storage import SqlRecordStore, check_integrity, open_database
from service.storage.errors import DatabaseDamaged
from service.storage.integrity import check_file
from tests.builders import MARKET, make_batch


async def filled(url: str) -> Path:
    """Return the path of the database at this URL with a few thousand rows in it."""
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        await store.write(await store.open_run(MARKET, {}, 0), make_batch(0, 3000))
        assert database.address.path is not None
        return database.address.path


async def test_a_whole_file_passes(sqlite_url: str) -> None:
    await filled(sqlite_url)
    assert await check_integrity(sqlite_url)


async def test_a_file_with_an_overwritten_page_is_refused(sqlite_url: str) -> None:
    path = await filled(sqlite_url)
    content = bytearray(path.read_bytes())
    content[-200 * 4096 : -199 * 4096] = b"\x5a" * 4096
    path.write_bytes(content)
    with pytest.raises(DatabaseDamaged, match=r"livewick\.db is damaged .*restore a backup"):
        await check_integrity(sqlite_url)


async def test_a_file_that_was_cut_off_is_refused(sqlite_url: str) -> None:
    path = await filled(sqlite_url)
    path.write_bytes(path.read_bytes()[:-100_000])
    with pytest.raises(DatabaseDamaged):
        await check_integrity(sqlite_url)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"certainly not a database" * 100)
    with pytest.raises(DatabaseDamaged, match="not a database"):
        await check_integrity(f"sqlite:///{tmp_path}/x.db")


async def test_a_folder_in_the_place_of_the_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^DATABASE_URL names a folder, .*: name a file in it$"):
        await check_integrity(f"sqlite:///{tmp_path}")


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened") as refused:
        check_file(tmp_path, 1.0)
    assert not isinstance(refused.value, DatabaseDamaged)


async def test_a_check_that_takes_too_long_says_that_it_is_not_done(sqlite_url: str) -> None:
    await filled(sqlite_url)
    assert not await check_integrity(sqlite_url, budget_seconds=0.0)


async def test_there_is_nothing_to_check_before_the_first_start_or_on_postgresql(tmp_path: Path) -> None:
    assert await check_integrity(f"sqlite:///{tmp_path}/none.db")
    assert await check_integrity("postgresql://nobody@127.0.0.1:9/none")
    assert os.listdir(tmp_path) == []
