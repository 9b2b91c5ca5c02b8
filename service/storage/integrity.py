"""Integrity: is an SQLite file whole? PostgreSQL looks after itself."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from service.storage.database import parse_url
from service.storage.errors import DatabaseDamaged

BUDGET_SECONDS = 5.0
PROGRESS_EVERY = 100_000


async def check_integrity(url: str, budget_seconds: float = BUDGET_SECONDS) -> bool:
    """Raise DatabaseDamaged when the SQLite file is damaged; a missing file and PostgreSQL are fine.

    Returns whether all of the file was looked at: a large one is read for ``budget_seconds`` only, so that starting
    does not take minutes.
    """
    path = parse_url(url).path
    if path is None or not path.exists():
        return True
    return await asyncio.to_thread(check_file, path, budget_seconds)


def check_file(path: Path, budget_seconds: float) -> bool:
    """Look at every page that the time allows."""
    deadline = time.monotonic() + budget_seconds
    connection = sqlite3.connect(path, timeout=budget_seconds)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_EVERY)
    try:
        for (finding,) in connection.execute("PRAGMA quick_check(1)"):
            if finding != "ok":
                raise damaged(path, finding)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY):
            return False
        raise damaged(path, str(error)) from error
    finally:
        connection.close()
    return True


def damaged(path: Path, finding: str) -> DatabaseDamaged:
    """Return the error, with what to do."""
    reason = " ".join(finding.split()).removeprefix("*** in database main *** ")
    return DatabaseDamaged(f"{path} is damaged ({reason}): stop everything that uses it and restore a backup")
