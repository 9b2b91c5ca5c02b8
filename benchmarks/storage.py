"""How fast history is read from a full database: ``python -m benchmarks.storage --rows 30000000``.

Fills the table ``steps`` inside the database itself, then times the reads behind ``/steps`` (10,000 rows), ``/series``
(a day in buckets of 60 s) and ``/score?window=3600`` (the newest 3,600 steps) at random places, and the write of one
candle's records. ``cpu`` is what this process used, whatever else the machine was doing. Prints a table and writes JSON
to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sqlalchemy import text

from models.candle import Candle
from service.ports import RecordBatch, Run
from service.storage import Database, SqlRecordStore, migrate, open_database
from tests.builders import MARKET, make_prediction, make_step
from tests.support.postgres import PostgresCluster

RESULTS = Path(__file__).parent / "results"
START = 1_600_000_000_000
BATCH = 1_000_000
LIMITS_MS = {"steps, 10,000 rows": 300.0, "series, one day by 60 s": 500.0, "score, newest 3,600": 100.0}
COLUMNS = """run_id, open_time, market, source, step, loss, train_loss, correct, trend_correct, direction, label,
    grad_norm, grad_norm_clipped, clipped, skipped, learning_rate, infer_ms, train_ms, lag_ms, queue_depth"""
FILL = {
    "sqlite": f"""
        WITH RECURSIVE n(i) AS (SELECT :low UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :high)
        INSERT INTO steps ({COLUMNS})
        SELECT :run, {START} + i * 1000, '{MARKET}', 'live', i,
            (i * 7919 % 1000003) / 7e5, (i * 104729 % 1000003) / 7e5, i * 31 % 7 < 3, i * 17 % 5 < 2, 'up', 'down',
            (i * 1299709 % 1000003) / 3e5, 0.99, 1, NULL, 0.001,
            (i * 15485863 % 1000003) / 1e6, (i * 32452843 % 1000003) / 3e5, (i * 49979687 % 1000003) / 1e4, 0
        FROM n""",  # noqa: S608 - our own names
    "postgresql": f"""
        INSERT INTO steps ({COLUMNS})
        SELECT :run, {START} + i * 1000, '{MARKET}', 'live', i, random() * 1.4, random() * 1.4,
            random() < 0.5, random() < 0.5, 'up', 'down', random() * 3, 0.99, true, NULL, 0.001,
            random(), random() * 3, random() * 100, 0
        FROM generate_series(CAST(:low AS bigint), CAST(:high AS bigint) - 1) AS i""",  # noqa: S608
}


def main() -> None:
    """Parse the arguments, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=200, help="reads of each kind")
    parser.add_argument("--databases", default="sqlite,postgres")
    parser.add_argument("--folder", type=Path, help="where the SQLite file goes (default: a temporary folder)")
    parser.add_argument("--url", help="a database to fill up to --rows and keep, so that it can be measured again")
    options = parser.parse_args()
    kinds = [options.url] if options.url else options.databases.split(",")
    results = [asyncio.run(measure_kind(kind, options)) for kind in kinds]
    for result in results:
        report(result)
    keep(results)


def keep(results: list[dict[str, Any]]) -> None:
    """Write the results over those of the same database; what was measured of the other one stays."""
    path = RESULTS / "storage.json"
    known = json.loads(path.read_text()) if path.exists() else []
    merged = {result["database"]: result for result in [*known, *results]}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(list(merged.values()), indent=2) + "\n")


async def measure_kind(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one database from empty to dropped, or the one that ``kind`` is the URL of."""
    with nullcontext(kind) if options.url else fresh_database(kind, options.folder) as url:
        await migrate(url)
        async with open_database(url, write_timeout_seconds=3600) as database:
            run = await SqlRecordStore(database).open_run(MARKET, {}, 0)
            seconds = await fill(database, run, options.rows)
            size = await size_bytes(database)
        # A machine that is busy with something else shows as a slow read, not as an error.
        async with open_database(url, read_timeout_seconds=60) as database:
            timings = await measure(SqlRecordStore(database), run, options.rows, options.rounds)
        name = database.engine.dialect.name
    return {"database": name, "rows": options.rows, "fill_seconds": seconds, "bytes": size, "reads": timings}


@contextmanager
def fresh_database(kind: str, folder: Path | None) -> Iterator[str]:
    """Lend the URL of an empty database of either kind."""
    if kind == "sqlite":
        place = Path(tempfile.mkdtemp(prefix="livewick-bench-", dir=folder))
        try:
            yield f"sqlite+aiosqlite:///{place}/bench.db"
        finally:
            shutil.rmtree(place)
        return
    cluster = PostgresCluster()
    try:
        cluster.sql("CREATE DATABASE bench")
        yield cluster.url("bench")
    finally:
        cluster.close()


async def fill(database: Database, run: Run, rows: int) -> float:
    """Make ``rows`` steps, one a second, inside the database, after those it has; returns the seconds it took."""
    started = time.perf_counter()
    newest = await SqlRecordStore(database).newest_time("steps", MARKET)
    first = 0 if newest is None else (newest - START) // 1000 + 1
    for low in range(first, rows, BATCH):
        async with database.writing() as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(text("SET LOCAL statement_timeout = 0"))
                # Millions of look-ups of the same run would measure nothing of ours.
                await connection.execute(text("SET LOCAL session_replication_role = replica"))
            else:
                # The rows are ours, and a crash would cost nothing but a new start.
                await connection.execute(text("PRAGMA ignore_check_constraints = ON"))
            values = {"run": run.id, "low": low, "high": min(low + BATCH, rows)}
            await connection.execute(text(FILL[connection.dialect.name]), values)
    if first < rows and not database.address.is_sqlite:
        async with database.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("SET statement_timeout = 0"))
            await connection.execute(text("VACUUM ANALYZE steps"))
    # What was written must be on the disk before reading is timed.
    await asyncio.to_thread(os.sync)
    return time.perf_counter() - started


async def size_bytes(database: Database) -> int:
    """Return how much room the table and its index take."""
    query = "SELECT pg_total_relation_size('steps')"
    if database.address.is_sqlite:
        query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    async with database.reading() as connection:
        return int((await connection.execute(text(query))).scalar_one())


async def measure(store: SqlRecordStore, run: Run, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Time every kind of read ``rounds`` times, at places that a fixed seed chooses."""
    rng = random.Random(0)
    end = START + rows * 1000
    fields = ["loss", "accuracy", "trend_accuracy", "lag_ms"]

    async def steps() -> None:
        start = START + rng.randrange(max(1, rows - 10_000)) * 1000
        assert len(await store.steps(MARKET, start, None, 10_000)) == min(rows, 10_000)

    async def series() -> None:
        start = START + rng.randrange(max(1, rows - 86_400)) * 1000
        assert await store.series(MARKET, fields, 60, start, start + 86_400_000, 10_000)

    async def score() -> None:
        assert len(await store.steps(MARKET, end - 3_600_000, None, 3600)) == min(rows, 3600)

    async def long_series() -> None:
        assert await store.series(MARKET, fields, 3600, START, None, 10_000)

    moment = await store.newest_time("steps", MARKET) or end

    async def write() -> None:
        nonlocal moment
        moment += 1000
        candle = Candle(MARKET, moment, 10.0, 11.0, 9.0, 10.5, 1.0)
        step, prediction = make_step(open_time=moment), make_prediction(open_time=moment + 1000)
        await store.write(run, RecordBatch([candle], predictions=[prediction], steps=[step]))

    return {
        "steps, 10,000 rows": await timed(steps, rounds),
        "series, one day by 60 s": await timed(series, rounds),
        "series, all by the hour": await timed(long_series, max(2, rounds // 20)),
        "score, newest 3,600": await timed(score, rounds),
        "write of one candle": await timed(write, rounds),
    }


async def timed(call: Callable[[], Awaitable[None]], rounds: int) -> dict[str, float]:
    """Return milliseconds: median, 99th percentile, worst, and the mean of this process's CPU time."""
    taken = []
    cpu = time.process_time()
    for _ in range(rounds):
        started = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - started) * 1000)
    cpu = (time.process_time() - cpu) * 1000 / rounds
    return {
        "median_ms": median(taken),
        "p99_ms": quantiles(taken, n=100, method="inclusive")[98],
        "max_ms": max(taken),
        "cpu_ms": cpu,
    }


def report(result: dict[str, Any]) -> None:
    """Print one database's table."""
    size, rows = result["bytes"], result["rows"]
    print(f"\n{result['database']}: {rows:,} steps, {size / 1e6:,.0f} MB ({size / rows:.0f} bytes a row), ", end="")
    print(f"filled in {result['fill_seconds']:.0f} s")
    print(f"{'':28}{'median ms':>12}{'p99 ms':>12}{'max ms':>12}{'cpu ms':>12}{'limit ms':>12}")
    for name, times in result["reads"].items():
        limit = f"{LIMITS_MS[name]:.0f}" if name in LIMITS_MS else "-"
        figures = "".join(f"{times[key]:>12.1f}" for key in ("median_ms", "p99_ms", "max_ms", "cpu_ms"))
        print(f"{name:28}{figures}{limit:>12}")


if __name__ == "__main__":
    main()
