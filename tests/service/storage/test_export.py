"""Export: every record of a range, the same bits, and a file that is either whole or not there."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from service.ports import StoreUnavailable
from service.storage import SqlRecordStore, export, open_database
from service.storage.export import What, columns
from tests.builders import MARKET, at, make_batch

exporting = pytest.mark.parametrize("what", ["candles", "predictions", "steps"])
export_module = export.__globals__


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(export_module, "PAGE_ROWS", 7)


def typed(row: dict[str, str], kinds: dict[str, str]) -> dict[str, Any]:
    """Return a CSV row's values as what they were."""
    words = {"": None, "true": True, "false": False}
    read = {"int": int, "float": float}
    return {name: words[text] if text in words else read.get(kinds[name], str)(text) for name, text in row.items()}


def expected(record: Any, names: list[str]) -> dict[str, Any]:
    """Return what a row of this record should say."""
    values = {name: getattr(record, name, None) for name in names}
    if "trend_horizon" in names:
        values |= {"trend_horizon": record.trend.horizon, "trend_p_up": record.trend.p_up}
        values["weights"] = json.dumps(record.weights, separators=(",", ":"))
    return values


def outputs(folder: Path) -> list[str]:
    """Return what an export left in the folder."""
    return [name for name in os.listdir(folder) if name.startswith("out")]


@exporting
@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
async def test_a_range_comes_out_whole_and_exact(url: str, what: What, name: str, tmp_path: Path) -> None:
    batch = make_batch(0, 30)
    path = tmp_path / name
    kinds = columns(what)
    told: list[tuple[float, int]] = []
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        await store.write(await store.open_run(MARKET, {}, 0), batch)
        kind = "parquet" if name.endswith("parquet") else "csv"
        count = await export(store, what, MARKET, path, kind, at(5), at(25), lambda *state: told.append(state))  # type: ignore[arg-type]
    records = [record for record in getattr(batch, what) if at(5) <= record.open_time < at(25)]
    if kind == "parquet":
        rows = pyarrow.parquet.read_table(path).to_pylist()
    else:
        with (gzip.open if name.endswith("gz") else open)(path, "rt", encoding="utf-8", newline="") as file:
            rows = [typed(row, kinds) for row in csv.DictReader(file)]
    assert rows == [expected(record, list(kinds)) for record in records]
    assert count == len(records) == 20
    assert [rows for _, rows in told] == [7, 14, 20]
    assert [part for part, _ in told] == pytest.approx([0.3, 0.65, 0.95], abs=0.05)
    assert outputs(tmp_path) == [name]


async def test_an_export_that_fails_leaves_no_file(sqlite_url: str, tmp_path: Path) -> None:
    async with open_database(sqlite_url) as database:
        store = SqlRecordStore(database)
        await store.write(await store.open_run(MARKET, {}, 0), make_batch(0, 30))

        def stop(part: float, rows: int) -> None:
            raise StoreUnavailable("on purpose")

        with pytest.raises(StoreUnavailable, match="on purpose"):
            await export(store, "steps", MARKET, tmp_path / "out.csv", progress=stop)
    assert outputs(tmp_path) == []


async def test_nothing_to_export_is_a_file_with_a_header(sqlite_url: str, tmp_path: Path) -> None:
    async with open_database(sqlite_url) as database:
        assert await export(SqlRecordStore(database), "candles", MARKET, tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_text() == "market,open_time,open,high,low,close,volume,source\n"
