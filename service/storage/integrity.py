"""Integrity: is an SQLite file whole? PostgreSQL looks after itself."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from service.ports import StoreUnavailable
from service.storage.address import parse_url
from service.storage.errors import DatabaseDamaged

BUDGET_SECONDS = 2.0
PROGRESS_EVERY = 100_000
TIME_IS_UP = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY)
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


async def check_integrity(url: str, budget_seconds: float = BUDGET_SECONDS) -> bool:
    """Raise DatabaseDamaged when the SQLite file is damaged; a missing file and PostgreSQL are fine.

    Raises StoreUnavailable when the file cannot be opened or read at all. Returns whether all of the file was
    looked at: a large one is read for ``budget_seconds`` only, so that starting does not take minutes.
    """
    path = parse_url(url).path
    if path is None or not path.exists():
        return True
    return await asyncio.to_thread(check_file, path, budget_seconds)


def check_file(path: Path, budget_seconds: float) -> bool:
    """Look at every page that the time allows."""
    try:
        with closing(sqlite3.connect(path, timeout=budget_seconds)) as connection:
            finding = first_finding(connection, time.monotonic() + budget_seconds)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in TIME_IS_UP:
            return False
        if error.sqlite_errorcode & 0xFF in DAMAGE:
            raise damaged(path, str(error)) from error
        raise StoreUnavailable(f"{path} cannot be opened as a database: {error}") from error
    if finding != "ok":
        raise damaged(path, finding)
    return True


def first_finding(connection: sqlite3.Connection, deadline: float) -> str:
    """Return the first thing that is wrong, or ``ok``; SQLite gives up at the ``deadline``."""
    connection.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_EVERY)
    return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])


def damaged(path: Path, finding: str) -> DatabaseDamaged:
    """Return the error, with what to do."""
    reason = " ".join(finding.split()).removeprefix("*** in database main *** ")
    return DatabaseDamaged(f"{path} is damaged ({reason}): stop everything that uses it and restore a backup")
