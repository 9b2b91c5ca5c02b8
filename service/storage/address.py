"""Address: a database URL that was checked before anything is asked of the database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from service.ports import ConfigurationError

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
# What asyncpg takes as text beside what stands before the question mark; anything else it answers with a TypeError.
PARAMETERS = frozenset({"ssl", "host", "port", "passfile", "service", "servicefile", "target_session_attrs"})
CHOICES = {
    "ssl": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "prefer-standby", "read-write", "read-only"),
}


@dataclass(frozen=True, slots=True)
class Address:
    """A checked database URL. ``path`` is an SQLite database's file; ``pgbouncer``: transactions are pooled."""

    url: URL
    path: Path | None
    pgbouncer: bool

    @property
    def is_sqlite(self) -> bool:
        """Tell which of the two databases this is."""
        return self.path is not None

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)


def parse_url(url: str) -> Address:
    """Return the checked address; raises ConfigurationError that names what is wrong, never the password.

    ``postgres://`` and ``sqlite://`` get their async driver; ``?pgbouncer=true`` and libpq's ``sslmode`` work.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError("DATABASE_URL is not a database URL (dialect://user:password@host/name)") from error
    if parsed.drivername not in DRIVERS:
        raise ConfigurationError(
            f"DATABASE_URL names {parsed.drivername}; this program knows sqlite+aiosqlite and postgresql+asyncpg"
        )
    parsed = parsed.set(drivername=DRIVERS[parsed.drivername])
    return sqlite_address(parsed) if parsed.drivername.startswith("sqlite") else postgres_address(parsed)


def sqlite_address(url: URL) -> Address:
    """Check the URL of an SQLite file."""
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        raise ConfigurationError("DATABASE_URL must name an SQLite file: what is only in memory is not kept")
    if url.query:
        raise ConfigurationError(f"DATABASE_URL: an SQLite file takes no parameter, but {listed(url.query)} is given")
    return Address(url, database_file(str(url.database)), pgbouncer=False)


def database_file(name: str) -> Path:
    """Return where the file is, whatever the working directory becomes; raises ConfigurationError for a folder."""
    path = Path(name).absolute()
    if path.is_dir():
        raise ConfigurationError(f"DATABASE_URL names a folder, {path}: name a file in it")
    return path


def postgres_address(url: URL) -> Address:
    """Check the URL of a PostgreSQL database and translate its parameters."""
    query = dict(url.query)
    pgbouncer = str(query.pop("pgbouncer", "false")).lower() in ("1", "true", "yes")
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    if unknown := sorted(query.keys() - PARAMETERS):
        known = listed(PARAMETERS | {"sslmode", "pgbouncer"})
        raise ConfigurationError(f"DATABASE_URL has an unknown parameter, {listed(unknown)}; known are {known}")
    for name, words in CHOICES.items():
        if query.get(name, words[0]) not in words:
            raise ConfigurationError(f"DATABASE_URL: {name} must be one of {', '.join(words)}")
    url = url.set(query=query)
    try:
        url.get_dialect()().create_connect_args(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(f"DATABASE_URL cannot be used: {error}") from error
    return Address(url, None, pgbouncer)


def listed(names: Iterable[str]) -> str:
    """Return names as text, in order."""
    return ", ".join(sorted(names))
