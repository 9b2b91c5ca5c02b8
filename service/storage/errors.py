"""Which database errors are expected trouble (StoreUnavailable) and which are bugs (everything else)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from service.ports import ConfigurationError, LivewickError, StoreUnavailable

# Classes of SQLSTATE that a correct program meets: connection, transaction state (read-only, idle timeout), password,
# missing database, deadlock, resources (disk full), locks, operator intervention, system error, corruption.
TROUBLE_CLASSES = frozenset({"08", "25", "28", "3D", "40", "53", "55", "57", "58", "XX"})
INSUFFICIENT_PRIVILEGE = "42501"
# The server answers, and says that this user, password or database is not the right one.
ACCESS_CLASSES = frozenset({"28", "3D"})
# SQL that does not fit the schema, a row that may not exist, a call that may not be made: bugs.
SQLITE_BUGS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE})
# What asyncpg and SQLAlchemy say, without a SQLSTATE, of a connection that broke in the middle of something.
BROKEN_CONNECTION = ("InternalClientError", "InterfaceError", "ConnectionDoesNotExistError")


class SchemaMismatch(LivewickError):
    """The database's schema is not the one this program was written for."""


class MarketTaken(LivewickError):
    """Another process already trains this market on this database."""


class DatabaseDamaged(StoreUnavailable):
    """The database file is not readable as one; a backup has to be restored."""


class AccessRefused(StoreUnavailable):
    """The database knows no such user, password or database: trouble while running, a wrong setting at start."""


@contextmanager
def wrong_settings() -> Iterator[None]:
    """Turn what only another DATABASE_URL can cure into ConfigurationError: for a command that is just starting."""
    try:
        yield
    except AccessRefused as error:
        raise ConfigurationError(f"DATABASE_URL: {error}") from error


@contextmanager
def expected_trouble(doing: str) -> Iterator[None]:
    """Turn expected trouble of database drivers into StoreUnavailable; let bugs pass.

    ``doing`` completes "the database did not …".
    """
    try:
        yield
    except TimeoutError as error:
        raise StoreUnavailable(f"the database did not {doing} in time") from error
    except (OSError, exc.TimeoutError, exc.DBAPIError) as error:
        if isinstance(error, exc.DBAPIError) and not is_trouble(error):
            raise
        kind = AccessRefused if (state_of(error) or "")[:2] in ACCESS_CLASSES else StoreUnavailable
        raise kind(f"the database did not {doing}: {one_line(error)}") from error


def is_trouble(error: exc.DBAPIError) -> bool:
    """Return whether a correct program can meet this error."""
    if error.connection_invalidated:
        return True
    original = error.orig
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", None)
        # Without a code the error is aiosqlite's: the connection was closed underneath.
        return isinstance(original, sqlite3.OperationalError) if code is None else code & 0xFF not in SQLITE_BUGS
    if (state := state_of(error)) is not None:
        return state[:2] in TROUBLE_CLASSES or state == INSUFFICIENT_PRIVILEGE
    return type(original).__name__ in BROKEN_CONNECTION


def state_of(error: BaseException) -> str | None:
    """Return the SQLSTATE that PostgreSQL gave, if it did."""
    state: str | None = getattr(getattr(error, "orig", None) or error, "sqlstate", None)
    return state


def one_line(error: BaseException) -> str:
    """Return the first line of what the driver itself said, without SQL and parameters."""
    original = getattr(error, "orig", None) or error
    text = str(original).strip() or type(original).__name__
    return text.splitlines()[0].removeprefix("<class 'asyncpg.exceptions.").replace("'>:", ":")
