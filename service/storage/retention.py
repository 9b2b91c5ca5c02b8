"""Retention: old rows go in batches so small that nobody waits for them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select

from service.storage.database import Database
from service.storage.tables import candles, events, predictions, runs, steps

BATCH_ROWS = 2000


async def prune(database: Database, older_than_ms: int, batch_rows: int = BATCH_ROWS) -> int:
    """Delete candles, predictions, steps and events from before this UTC time; returns how many rows went.

    Each batch is a transaction of its own: stopping in the middle leaves only less to do next time.
    """
    async with database.reading() as connection:
        markets = (await connection.execute(select(runs.c.market).distinct())).scalars().all()
        ids = (await connection.execute(select(runs.c.id))).scalars().all()
    parts = [(table, table.c.run_id == run_id, table.c.open_time) for table in (predictions, steps) for run_id in ids]
    parts += [(candles, candles.c.market == market, candles.c.open_time) for market in markets]
    parts += [(events, events.c.market == market, events.c.at) for market in markets]
    gone = 0
    for table, mine, time in parts:
        while deleted := await delete_batch(database, table, mine, time, older_than_ms, batch_rows):
            gone += deleted
    return gone


async def delete_batch(
    database: Database,
    table: Table,
    mine: ColumnElement[bool],
    time: ColumnElement[Any],
    older_than_ms: int,
    batch_rows: int,
) -> int:
    """Delete about ``batch_rows`` of the oldest rows, along the key; returns how many."""
    oldest = select(time).where(mine, time < older_than_ms).order_by(time).limit(batch_rows).subquery()
    async with database.writing() as connection:
        last = (await connection.execute(select(func.max(oldest.c[0])))).scalar()
        if last is None:
            return 0
        return (await connection.execute(delete(table).where(mine, time <= last))).rowcount
