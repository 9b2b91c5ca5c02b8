"""SqlRecordStore: candles, predictions, steps and events in SQLite or PostgreSQL. Every query on them is in here."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Integer, Select, Table, bindparam, cast, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from models.candle import Candle
from models.records import Prediction, Step, Trend
from service.ports import SERIES_FIELDS, Event, RecordBatch, RecordStore, Run, SeriesPoint
from service.storage.database import Database
from service.storage.locks import lock_market
from service.storage.retention import prune
from service.storage.tables import candles, events, predictions, runs, steps
from service.strict_json import encode_exactly

CANDLE_FIELDS = tuple(field.name for field in fields(Candle))
STEP_FIELDS = tuple(field.name for field in fields(Step))
PREDICTION_FIELDS = tuple(field.name for field in fields(Prediction) if field.name != "trend")
# A step is worth keeping when one measurement in it is not a number: these columns then say NULL.
STEP_MEASURES = tuple(column.name for column in steps.columns if column.nullable)
# A few milliseconds of work.
READ_ROWS = 500
# About a second of work on either database, done in pieces of a tenth: how much of a long series one answer tells.
SERIES_STEPS = 1_000_000
SERIES_STEPS_AT_ONCE = 100_000
Record = TypeVar("Record")
AVERAGED = {"accuracy": "correct", "trend_accuracy": "trend_correct"}


class SqlRecordStore(RecordStore):
    """The RecordStore of a real service. Reads end within about 5 s, writes within about 10 s."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def ping(self) -> None:
        """Return when the database answers, else raise StoreUnavailable."""
        await self.database.ping()

    async def latest_run(self, market: str) -> Run | None:
        """Return the market's newest run."""
        async with self.database.reading() as connection:
            return await newest_run(connection, market)

    async def open_run(self, market: str, config: dict[str, Any], now_ms: int) -> Run:
        """Return the market's newest run when its config equals this one, else start a new run."""
        async with self.database.writing() as connection:
            await lock_market(connection, "run", market)
            newest = await newest_run(connection, market)
            if newest is not None and canonical(newest.config) == canonical(config):
                return newest
            row = {"market": market, "config": config, "started_at": now_ms}
            made = await connection.execute(runs.insert().values(row).returning(runs.c.id))
            return Run(made.scalar_one(), market, config, now_ms)

    async def write(self, run: Run, batch: RecordBatch) -> None:
        """Store the batch in one transaction; calling it again with the same batch changes nothing.

        Raises MarketTaken when another process has become the market's trainer.
        """
        await self.database.ensure_lease(run.market)
        async with self.database.writing() as connection:
            await replace_candles(connection, [candle_row(row) for row in (*batch.candles, *batch.corrections)])
            await insert_new(connection, predictions, [prediction_row(run, row) for row in batch.predictions])
            await insert_new(connection, steps, [step_row(run, row) for row in batch.steps])
            await mark_trends(connection, run, batch)
            await insert_new(connection, events, [event_row(row) for row in batch.events])

    async def candles(self, market: str, start: int | None, end: int | None, limit: int) -> list[Candle]:
        """Return the first ``limit`` candles from ``start`` (inclusive) to ``end`` (exclusive), ascending."""
        columns = [candles.c[name] for name in CANDLE_FIELDS]
        query = select(*columns).where(candles.c.market == market, *between(candles, start, end))
        return await self._read(query.order_by(candles.c.open_time).limit(limit), Candle)

    async def last_candles(self, market: str, limit: int) -> list[Candle]:
        """Return the newest ``limit`` candles, ascending."""
        columns = [candles.c[name] for name in CANDLE_FIELDS]
        query = select(*columns).where(candles.c.market == market).order_by(candles.c.open_time.desc()).limit(limit)
        return (await self._read(query, Candle))[::-1]

    async def predictions(self, market: str, start: int | None, end: int | None, limit: int) -> list[Prediction]:
        """Return predictions of the market's newest run, like candles."""
        columns = [predictions.c[name] for name in PREDICTION_FIELDS]
        query = select(*columns, predictions.c.trend_horizon, predictions.c.trend_p_up)
        query = query.where(of_newest_run(predictions, market), *between(predictions, start, end))
        return await self._read(query.order_by(predictions.c.open_time).limit(limit), read_prediction)

    async def steps(self, market: str, start: int | None, end: int | None, limit: int) -> list[Step]:
        """Return steps of the market's newest run, like candles."""
        query = select(*(steps.c[name] for name in STEP_FIELDS))
        query = query.where(of_newest_run(steps, market), *between(steps, start, end))
        return await self._read(query.order_by(steps.c.open_time).limit(limit), Step)

    async def events(self, market: str, start: int | None, end: int | None, limit: int) -> list[Event]:
        """Return the first ``limit`` events from ``start`` (inclusive) to ``end`` (exclusive), ascending by ``at``."""
        query = select(events.c.market, events.c.kind, events.c.detail, events.c.at).where(events.c.market == market)
        bounds = [events.c.at >= start] if start is not None else []
        bounds += [events.c.at < end] if end is not None else []
        return await self._read(query.where(*bounds).order_by(events.c.at, events.c.id).limit(limit), Event)

    async def series(
        self, market: str, fields: Sequence[str], bucket_seconds: int, start: int | None, end: int | None, limit: int
    ) -> list[SeriesPoint]:
        """Return means of the newest run's steps per bucket that has any, ascending; the first ``limit`` of them.

        Buckets start at multiples of ``bucket_seconds``. No more rows are read than the answer needs, and fewer buckets
        are returned when these would be more than SERIES_STEPS; always one where there is any.
        """
        unknown = set(fields) - set(SERIES_FIELDS)
        if unknown:
            raise ValueError(f"series cannot average {sorted(unknown)}")
        bucket_ms = bucket_seconds * 1000
        most = max(1, SERIES_STEPS_AT_ONCE // bucket_seconds)
        points: list[SeriesPoint] = []
        async with self.database.reading() as connection:
            while len(points) < limit and sum(point.count for point in points) < SERIES_STEPS:
                first = await first_step_time(connection, market, start, end)
                if first is None:
                    break
                start = first
                stop = first - first % bucket_ms + min(most, limit - len(points)) * bucket_ms
                stop = stop if end is None else min(stop, end)
                points += await bucket_means(connection, market, fields, bucket_ms, start, stop)
                start = stop
        return points

    async def newest_time(self, what: Literal["candles", "predictions", "steps"], market: str) -> int | None:
        """Return the last open_time there is, of the market's newest run where that matters."""
        table = {"candles": candles, "predictions": predictions, "steps": steps}[what]
        mine = candles.c.market == market if table is candles else of_newest_run(table, market)
        async with self.database.reading() as connection:
            newest: int | None = (await connection.execute(select(func.max(table.c.open_time)).where(mine))).scalar()
        return newest

    async def prune(self, older_than_ms: int) -> int:
        """Delete candles, predictions, steps and events from before this UTC time; returns how many rows went."""
        return await prune(self.database, older_than_ms)

    async def _read(self, query: Select[Any], make: Callable[..., Record]) -> list[Record]:
        """Return what ``make`` makes of each row's values."""
        records: list[Record] = []
        async with self.database.reading() as connection:
            for rows in (await connection.execute(query)).partitions(READ_ROWS):
                records += [make(*row) for row in rows]
                # A reader of 10,000 rows must not hold up the prediction that is due now.
                await asyncio.sleep(0)
        return records


async def newest_run(connection: AsyncConnection, market: str) -> Run | None:
    """Return the market's newest run."""
    query = select(runs.c.id, runs.c.market, runs.c.config, runs.c.started_at).where(runs.c.market == market)
    row = (await connection.execute(query.order_by(runs.c.id.desc()).limit(1))).first()
    return None if row is None else Run(*row)


async def first_step_time(connection: AsyncConnection, market: str, start: int | None, end: int | None) -> int | None:
    """Return the first open_time in the range that has a step."""
    query = select(steps.c.open_time).where(of_newest_run(steps, market), *between(steps, start, end))
    found: int | None = (await connection.execute(query.order_by(steps.c.open_time).limit(1))).scalar()
    return found


async def bucket_means(
    connection: AsyncConnection, market: str, names: Sequence[str], bucket_ms: int, start: int, end: int
) -> list[SeriesPoint]:
    """Return one point per bucket that has steps in the range."""
    bucket = (steps.c.open_time - steps.c.open_time % bucket_ms).label("bucket")
    query = select(bucket, func.count(), *(mean(name) for name in names))
    query = query.where(of_newest_run(steps, market), *between(steps, start, end))
    rows = (await connection.execute(query.group_by(bucket).order_by(bucket))).all()
    return [SeriesPoint(row[0], row[1], dict(zip(names, row[2:], strict=True))) for row in rows]


def mean(name: str) -> ColumnElement[Any]:
    """Return the average that SERIES_FIELDS means by ``name``, as a float or NULL."""
    column = steps.c[AVERAGED.get(name, name)]
    number = cast(column, Integer) if name in AVERAGED else column
    return cast(func.avg(number), steps.c.loss.type)


def of_newest_run(table: Table, market: str) -> ColumnElement[bool]:
    """Return the condition that a row belongs to the market's newest run."""
    newest = select(func.max(runs.c.id)).where(runs.c.market == market).scalar_subquery()
    return table.c.run_id == newest


def between(table: Table, start: int | None, end: int | None) -> list[ColumnElement[bool]]:
    """Return the bounds on open_time that are given."""
    bounds = [table.c.open_time >= start] if start is not None else []
    return bounds + ([table.c.open_time < end] if end is not None else [])


async def insert_new(connection: AsyncConnection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows that are not there yet."""
    if rows:
        statement = insert_for(connection)(table).on_conflict_do_nothing()
        await connection.execute(statement, rows)


async def replace_candles(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    """Insert candles, over those that are there."""
    if rows:
        statement = insert_for(connection)(candles)
        changed = {name: statement.excluded[name] for name in CANDLE_FIELDS[2:]}
        await connection.execute(
            statement.on_conflict_do_update(index_elements=["market", "open_time"], set_=changed), rows
        )


async def mark_trends(connection: AsyncConnection, run: Run, batch: RecordBatch) -> None:
    """Write down which trends were right."""
    if batch.trends:
        due: BindParameter[bool] = bindparam("outcome")
        statement = update(steps).where(steps.c.run_id == run.id, steps.c.open_time == bindparam("due"))
        statement = statement.where(steps.c.trend_correct.is_distinct_from(due)).values(trend_correct=due)
        rows = [{"due": trend.open_time, "outcome": trend.correct} for trend in batch.trends]
        await connection.execute(statement, rows)


def insert_for(connection: AsyncConnection) -> Any:
    """Return the ``insert`` that knows ON CONFLICT in this database."""
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def candle_row(candle: Candle) -> dict[str, Any]:
    """Return a candle as a row."""
    return {name: getattr(candle, name) for name in CANDLE_FIELDS}


def prediction_row(run: Run, prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as a row of ``run``."""
    row = {name: getattr(prediction, name) for name in PREDICTION_FIELDS}
    trend = prediction.trend
    return {"run_id": run.id, "trend_horizon": trend.horizon, "trend_p_up": trend.p_up, **row}


def read_prediction(*row: Any) -> Prediction:
    """Return the prediction with these PREDICTION_FIELDS, trend_horizon and trend_p_up."""
    *values, horizon, p_up = row
    return Prediction(**dict(zip(PREDICTION_FIELDS, values, strict=True)), trend=Trend(horizon, p_up))


def step_row(run: Run, step: Step) -> dict[str, Any]:
    """Return a step as a row of ``run``, with NULL for a measurement that is not finite."""
    row = {name: getattr(step, name) for name in STEP_FIELDS}
    for name in STEP_MEASURES:
        if isinstance(row[name], float) and not math.isfinite(row[name]):
            row[name] = None
    return {"run_id": run.id, **row}


def event_row(event: Event) -> dict[str, Any]:
    """Return an event as a row; the digest makes storing it twice harmless."""
    digest = hashlib.sha256(canonical(event.detail).encode()).hexdigest()[:16]
    return {"market": event.market, "kind": event.kind, "detail": event.detail, "at": event.at, "digest": digest}


def canonical(value: object) -> str:
    """Return one text for equal JSON values."""
    return encode_exactly(value, sort_keys=True)
