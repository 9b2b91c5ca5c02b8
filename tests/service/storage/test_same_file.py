"""The SQLite file vanishes or is replaced under an open connection: nothing more is written into the void."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from service.ports import StoreUnavailable
from service.storage import SqlRecordStore, open_database
from tests.builders import MARKET, at, make_batch


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite+aiosqlite:///"))


async def test_a_file_that_is_moved_away_is_trouble_until_it_is_back(sqlite_url: str) -> None:
    path = file_of(sqlite_url)
    async with open_database(sqlite_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        await store.write(run, make_batch(0, 2))
        path.rename(path.with_name("elsewhere"))
        for call in (store.ping(), store.write(run, make_batch(2, 2)), store.steps(MARKET, None, None, 10)):
            with pytest.raises(StoreUnavailable, match="was deleted or moved away: put it back, or restart"):
                await call
        assert not path.exists(), "nobody may make an empty one in its place"
        path.with_name("elsewhere").rename(path)
        await store.ping()
        await store.write(run, make_batch(2, 2))
    async with open_database(sqlite_url) as database:
        stored = await SqlRecordStore(database).steps(MARKET, None, None, 10)
    assert [step.open_time for step in stored] == [at(index) for index in range(4)]


async def test_another_file_in_its_place_is_not_written_to(sqlite_url: str, tmp_path: Path) -> None:
    path = file_of(sqlite_url)
    async with open_database(sqlite_url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        shutil.copy(path, tmp_path / "copy.db")
        (tmp_path / "copy.db").replace(path)
        with pytest.raises(StoreUnavailable, match=r"another file is in the place of .*: restart Livewick"):
            await store.write(run, make_batch())
        with pytest.raises(StoreUnavailable, match="another file"):
            await store.ping()
    async with open_database(sqlite_url) as database:
        assert await SqlRecordStore(database).steps(MARKET, None, None, 10) == []


async def test_a_file_that_did_not_exist_yet_is_the_one_that_was_made(tmp_path: Path) -> None:
    async with open_database(f"sqlite+aiosqlite:///{tmp_path}/new.db") as database:
        await database.ping()
        await database.ping()
        (tmp_path / "new.db").unlink()
        with pytest.raises(StoreUnavailable, match="deleted"):
            await database.ping()
