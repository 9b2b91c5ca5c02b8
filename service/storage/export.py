"""Export: candles, predictions or steps of one market into a CSV or Parquet file, in bounded memory."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Protocol

from models.records import Trend
from service import csv_cells
from service.ports import ConfigurationError
from service.storage.records import SqlRecordStore

What = Literal["candles", "predictions", "steps"]
Format = Literal["csv", "parquet"]
Progress = Callable[[float, int], None]
PAGE_ROWS = 10_000
PARQUET_TYPES = {"int": "int64", "float": "float64", "bool": "bool_", "str": "string"}


class Writer(Protocol):
    """Takes rows as tuples of a record's values in the order of ``columns``."""

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None: ...


def columns(what: What) -> dict[str, str]:
    """Return the columns of an export and their kinds."""
    kinds = {field.name: str(field.type).split(" ")[0] for field in fields(csv_cells.RECORDS[what])}
    kinds |= {f"trend_{field.name}": str(field.type) for field in fields(Trend)}
    kinds = {name: kind if kind in PARQUET_TYPES else "str" for name, kind in kinds.items()}
    return {name: kinds[name] for name in csv_cells.columns(csv_cells.RECORDS[what])}


async def export(
    store: SqlRecordStore,
    what: What,
    market: str,
    path: Path,
    format: Format = "csv",
    start: int | None = None,
    end: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the records of a range (start inclusive, end exclusive) to ``path`` and return how many there were.

    CSV is compressed when the name ends in ``.gz``; floats are written so that they read back as the same bits. The
    file appears under its name only when it is complete. ``progress`` gets the part done (0 to 1) and the rows.
    """
    count = 0
    partial = path.with_name(path.name + ".partial")
    try:
        with (parquet_writer if format == "parquet" else csv_writer)(partial, what, path.suffix == ".gz") as writer:
            first = last = None
            async for page in pages(store, what, market, start, end):
                writer.write([csv_cells.values(record) for record in page])
                count += len(page)
                if progress is not None:
                    first = page[0].open_time if first is None else first
                    last = await last_time(store, what, market, end) if last is None else last
                    progress(min(1.0, (page[-1].open_time - first + 1) / (last - first + 1)), count)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


async def pages(
    store: SqlRecordStore, what: What, market: str, start: int | None, end: int | None
) -> AsyncIterator[Sequence[Any]]:
    """Yield the records ascending, a page at a time, each by a query of its own: nothing stays open in between."""
    read: Callable[..., Any] = getattr(store, what)
    while page := await read(market, start, end, PAGE_ROWS):
        yield page
        start = page[-1].open_time + 1


async def last_time(store: SqlRecordStore, what: What, market: str, end: int | None) -> int:
    """Return the last open_time of the range, to tell how far we are."""
    newest = await store.newest_time(what, market) or 0
    return newest if end is None else min(newest, end - 1)


@contextmanager
def csv_writer(path: Path, what: What, compressed: bool) -> Iterator[Writer]:
    """Lend a writer of CSV with a header."""
    open_text = gzip.open if compressed else open
    with open_text(path, "wt", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns(what))
        yield CsvRows(rows)


class CsvRows:
    """Rows into an open CSV file."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append the rows."""
        self._rows.writerows(map(csv_cells.cell, row) for row in rows)


@contextmanager
def parquet_writer(path: Path, what: What, _compressed: bool) -> Iterator[Writer]:
    """Lend a writer of Parquet; raises ConfigurationError where pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError("Parquet needs pyarrow: pip install 'livewick[parquet]'") from error
    kinds = columns(what)
    schema = pyarrow.schema([(name, getattr(pyarrow, PARQUET_TYPES[kind])()) for name, kind in kinds.items()])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as file:
        yield ParquetRows(file, pyarrow, schema)


class ParquetRows:
    """Rows into an open Parquet file, one row group a page."""

    def __init__(self, file: Any, pyarrow: Any, schema: Any) -> None:
        self._file = file
        self._pyarrow = pyarrow
        self._schema = schema

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append the rows."""
        arrays = [
            self._pyarrow.array(plain(column), type=field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._file.write_table(self._pyarrow.Table.from_arrays(arrays, schema=self._schema))


def plain(column: Sequence[Any]) -> list[Any]:
    """Return a column's values with dictionaries as the JSON they have in CSV."""
    return [csv_cells.cell(value) if isinstance(value, dict) else value for value in column]
