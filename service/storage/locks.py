"""PostgreSQL's advisory locks, by names instead of numbers."""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


async def lock_market(connection: AsyncConnection, purpose: str, market: str) -> None:
    """Wait for the sole right to do this for this market until the transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock_key(purpose, market)})


def lock_key(purpose: str, market: str) -> int:
    """Return a positive number for PostgreSQL's advisory locks, the same in every process."""
    digest = hashlib.sha256(f"livewick {purpose} {market}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
