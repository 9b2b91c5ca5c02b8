"""Fakes that pass the same contract checks as the real thing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from models.candle import Candle
from models.records import Prediction, Step
from service.ports import (
    SERIES_FIELDS,
    Checkpoint,
    CheckpointStore,
    Event,
    RecordBatch,
    RecordStore,
    Run,
    SeriesPoint,
    StoreUnavailable,
)

Row = TypeVar("Row", Candle, Prediction, Step)
STEP_FIELD = {"accuracy": "correct", "trend_accuracy": "trend_correct"}


class InMemoryStore(RecordStore, CheckpointStore):
    """Both stores in dictionaries. While ``unavailable`` is a text, every call raises StoreUnavailable with it."""

    def __init__(self) -> None:
        self.unavailable: str | None = None
        self.runs: list[Run] = []
        self.stored_candles: dict[tuple[str, int], Candle] = {}
        self.stored_predictions: dict[tuple[int, int], Prediction] = {}
        self.stored_steps: dict[tuple[int, int], Step] = {}
        self.stored_events: list[Event] = []
        self.stored_checkpoints: dict[int, dict[int, Checkpoint]] = defaultdict(dict)
        self.aside: dict[tuple[int, int], str] = {}

    async def ping(self) -> None:
        if self.unavailable is not None:
            raise StoreUnavailable(self.unavailable)

    async def latest_run(self, market: str) -> Run | None:
        await self.ping()
        return next((run for run in reversed(self.runs) if run.market == market), None)

    async def open_run(self, market: str, config: dict[str, Any], now_ms: int) -> Run:
        newest = await self.latest_run(market)
        if newest is not None and newest.config == config:
            return newest
        self.runs.append(Run(len(self.runs) + 1, market, config, now_ms))
        return self.runs[-1]

    async def write(self, run: Run, batch: RecordBatch) -> None:
        await self.ping()
        for candle in (*batch.candles, *batch.corrections):
            self.stored_candles[candle.market, candle.open_time] = candle
        for prediction in batch.predictions:
            self.stored_predictions.setdefault((run.id, prediction.open_time), prediction)
        for step in batch.steps:
            self.stored_steps.setdefault((run.id, step.open_time), step)
        for trend in batch.trends:
            if (key := (run.id, trend.open_time)) in self.stored_steps:
                self.stored_steps[key] = replace(self.stored_steps[key], trend_correct=trend.correct)
        self.stored_events += [event for event in batch.events if event not in self.stored_events]

    async def candles(self, market: str, start: int | None, end: int | None, limit: int) -> list[Candle]:
        await self.ping()
        mine = (row for row in self.stored_candles.values() if row.market == market)
        return in_range(mine, start, end, limit)

    async def last_candles(self, market: str, limit: int) -> list[Candle]:
        return (await self.candles(market, None, None, 2**31))[-limit:]

    async def predictions(self, market: str, start: int | None, end: int | None, limit: int) -> list[Prediction]:
        run = await self.latest_run(market)
        mine = (row for key, row in self.stored_predictions.items() if run is not None and key[0] == run.id)
        return in_range(mine, start, end, limit)

    async def steps(self, market: str, start: int | None, end: int | None, limit: int) -> list[Step]:
        run = await self.latest_run(market)
        mine = (row for key, row in self.stored_steps.items() if run is not None and key[0] == run.id)
        return in_range(mine, start, end, limit)

    async def events(self, market: str, start: int | None, end: int | None, limit: int) -> list[Event]:
        await self.ping()
        mine = (row for row in self.stored_events if row.market == market)
        inside = [row for row in mine if (start is None or row.at >= start) and (end is None or row.at < end)]
        return sorted(inside, key=lambda row: row.at)[:limit]

    async def series(
        self, market: str, fields: Sequence[str], bucket_seconds: int, start: int | None, end: int | None, limit: int
    ) -> list[SeriesPoint]:
        if unknown := set(fields) - set(SERIES_FIELDS):
            raise ValueError(f"series cannot average {sorted(unknown)}")
        buckets: dict[int, list[Step]] = defaultdict(list)
        for step in await self.steps(market, start, end, 2**31):
            buckets[step.open_time - step.open_time % (bucket_seconds * 1000)].append(step)
        points = [
            SeriesPoint(opened, len(rows), {name: mean(rows, name) for name in fields})
            for opened, rows in sorted(buckets.items())
        ]
        return points[:limit]

    async def save(self, run: Run, checkpoint: Checkpoint) -> None:
        await self.ping()
        mine = self.stored_checkpoints[run.id]
        mine[checkpoint.open_time] = checkpoint
        self.aside.pop((run.id, checkpoint.open_time), None)
        good = [kept for kept in self._good(run) if kept.loss is not None]
        best = min(good, key=lambda kept: kept.loss or 0.0).open_time if good else None
        keep = {kept.open_time for kept in self._good(run)[-5:]} | {best}
        for dropped in [kept.open_time for kept in self._good(run) if kept.open_time not in keep]:
            del mine[dropped]

    async def latest(self, run: Run) -> Checkpoint | None:
        return await self.previous(run, 2**62)

    async def previous(self, run: Run, before: int) -> Checkpoint | None:
        await self.ping()
        return next((kept for kept in reversed(self._good(run)) if kept.open_time < before), None)

    async def set_aside(self, run: Run, checkpoint: Checkpoint, reason: str) -> None:
        await self.ping()
        self.aside[run.id, checkpoint.open_time] = reason

    def _good(self, run: Run) -> list[Checkpoint]:
        kept = sorted(self.stored_checkpoints[run.id].items())
        return [checkpoint for open_time, checkpoint in kept if (run.id, open_time) not in self.aside]


def in_range(rows: Iterable[Row], start: int | None, end: int | None, limit: int) -> list[Row]:
    """Return the first ``limit`` rows of the half-open range, ascending by open_time."""
    inside = [row for row in rows if (start is None or row.open_time >= start) and (end is None or row.open_time < end)]
    return sorted(inside, key=lambda row: row.open_time)[:limit]


def mean(rows: list[Step], name: str) -> float | None:
    """Return the average of a series field over the rows that have it."""
    values = [getattr(row, STEP_FIELD.get(name, name)) for row in rows]
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
