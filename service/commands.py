"""What each ``livewick`` command does. Heavy packages are imported by the command that needs them."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from service.out_file import cannot_write, check_out
from service.ports import ConfigurationError, LivewickError, RecordStore
from service.settings import Settings

if TYPE_CHECKING:
    from models.candle import Candle
    from models.config import LearnerConfig

MAX_STORED_CANDLES = 1_000_000


def serve(options: argparse.Namespace, settings: Settings) -> None:
    signal.signal(signal.SIGTERM, _quit)  # until the service takes over: importing takes seconds
    from service.learner_child import LearnerChild, start_child

    children: list[LearnerChild] = []
    try:
        # Their imports take as long as ours, side by side. Extended one by one: what was started is always discarded.
        children.extend(start_child() for _ in settings.symbols)
        import uvloop

        from service.app import serve as serve_app
        from service.log import configure_logging

        configure_logging(settings.log_format, settings.log_level)
        uvloop.run(serve_app(settings, children))
    finally:
        for child in children:
            child.discard()


def migrate(options: argparse.Namespace, settings: Settings) -> None:
    from service.storage import migrate as migrate_database

    asyncio.run(migrate_database(settings.database_url))
    print("the database is at the newest schema")


def replay(options: argparse.Namespace, settings: Settings) -> None:
    from rich.console import Console
    from rich.progress import track

    from service.pretrained import read_pretrained
    from service.replay import make_learner
    from service.replay import replay as run
    from service.scorecard import print_scorecard, print_windows

    if options.steps:
        check_out(options.steps, files_in_use(settings, options.file))
    grid, config = read_grid(options.file, options.tick, options.limit, settings)
    learner = make_learner(config, read_pretrained(settings.pretrained))
    shown = track(grid, "replaying", console=Console(stderr=True), disable=not sys.stderr.isatty())
    result = run(shown, learner, options.steps)
    if options.json:
        print(json.dumps(asdict(result), allow_nan=False))
        return
    console = Console()
    print_scorecard(result.score, console)
    print_windows((learner.score(window, False) for window in (300, 3_600, "fading")), console)
    each = result.seconds / max(result.candles, 1) * 1000
    console.print(f"{result.candles:,} candles in {result.seconds:.1f} s, {each:.2f} ms each")


def pretrain(options: argparse.Namespace, settings: Settings) -> None:
    from models.checkpoint import dump_state
    from models.pretrain import PretrainConfig
    from models.pretrain import pretrain as run
    from service.pretrain_progress import shown
    from service.pretrained import write_pretrained
    from service.replay import make_learner

    check_out(options.out, files_in_use(settings, options.file))
    if options.file is None:
        grid, config = stored_grid(settings)
    else:
        grid, config = read_grid(options.file, options.tick, options.limit, settings)
    plan = PretrainConfig(options.epochs, options.batch, options.holdout, options.patience, settings.seed)
    learner = make_learner(config)
    with shown(plan.epochs) as progress:
        try:
            run(learner, grid, plan, progress)
        except ValueError as error:
            raise LivewickError(str(error)) from error
    learner.begin()
    write_pretrained(options.out, dump_state(learner.state_dict()))
    print(f"learned from {len(grid):,} candles; begin with LIVEWICK_PRETRAINED={options.out}")


def read_grid(
    file: Path, tick: float | None, limit: int | None, settings: Settings
) -> tuple[list[Candle], LearnerConfig]:
    """Read a candle file onto the regular grid; returns the candles and the learner's configuration for them."""
    from models.grid import fill_gaps
    from service.feed.replay import finest_tick

    market = f"{settings.exchange}:{settings.symbols[0]}"
    candles = read_file(file, market, settings.interval_ms)
    grid = list(islice(fill_gaps(candles, settings.interval_ms), limit))
    warn_of_coarser_candles(file, candles, settings)
    return grid, settings.learner(market, settings.interval_ms, tick or finest_tick(candles))


def read_file(file: Path, market: str, interval_ms: int) -> list[Candle]:
    """Read a candle file's candles, on one grid; raises LivewickError where there is none."""
    from models.grid import fill_gaps
    from service.feed.replay import read_candles

    try:
        candles = list(fill_gaps(read_candles(file, market), interval_ms, max_fill=0))
    except ValueError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    if not candles:
        raise LivewickError(f"{file} holds no candle")
    return candles


def files_in_use(settings: Settings, candles: Path | None = None) -> dict[str, Path | None]:
    """Return the files that a command must not write over, by what they are."""
    from service.storage.address import parse_url

    database = parse_url(settings.database_url).path
    beside = {suffix: database and database.with_name(database.name + suffix) for suffix in ("-wal", "-shm")}
    return {"the file to be read": candles, "the database": database} | {
        f"the database's {suffix} file": path for suffix, path in beside.items()
    }


def warn_of_coarser_candles(file: Path, candles: list[Candle], settings: Settings) -> None:
    """Say on stderr when no two candles of the file are as close as the timeframe: most of the grid is then filled."""
    spacing = min((after.open_time - before.open_time for before, after in pairwise(candles)), default=0)
    if spacing > settings.interval_ms:
        advice = f"LIVEWICK_TIMEFRAME is {settings.timeframe}, so what lies between is filled flat"
        print(f"livewick: {file}: its candles are {spacing // 1000} s apart or more; {advice}", file=sys.stderr)


def stored_grid(settings: Settings) -> tuple[list[Candle], LearnerConfig]:
    """Read the market's stored candles, as ``read_grid`` reads a file."""
    from service.feed.replay import finest_tick
    from service.storage import SqlRecordStore, check_schema, open_database

    async def read() -> tuple[str, list[Candle]]:
        async with open_database(settings.database_url) as database:
            await check_schema(database)
            store = SqlRecordStore(database)
            market = await stored_market(store, settings)
            return market, await store.last_candles(market, MAX_STORED_CANDLES)

    market, candles = asyncio.run(read())
    if not candles:
        raise LivewickError(f"the database holds no candle of {market}")
    return candles, settings.learner(market, settings.interval_ms, finest_tick(candles))


async def stored_market(store: RecordStore, settings: Settings) -> str:
    """Return the settings' market, or the simulated one in its place where only that was ever followed."""
    real, simulated = (f"{name}:{settings.symbols[0]}" for name in (settings.exchange, "simulated"))
    only_simulated = await store.latest_run(real) is None and await store.latest_run(simulated) is not None
    return simulated if only_simulated else real


def simulate(options: argparse.Namespace, settings: Settings) -> None:
    from service.simulator.faults import read_plan
    from service.simulator.market import SECOND_MS
    from service.simulator.server import SimulatedExchange, run_simulator

    market = f"simulated:{settings.symbols[0]}"
    candles = read_file(options.candles, market, SECOND_MS) if options.candles else None
    faults = read_plan(options.faults) if options.faults else ()

    async def run() -> None:
        exchange = SimulatedExchange(
            symbols=settings.symbols,
            seed=options.seed,
            port=options.port,
            candles=candles,
            speed=options.speed,
            faults=faults,
        )

        def tell() -> None:
            print(f"LIVEWICK_CCXT='{json.dumps(exchange.ccxt_config())}'", flush=True)

        task = asyncio.create_task(run_simulator(exchange, tell))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            print("stopped", file=sys.stderr)

    asyncio.run(run())


def export(options: argparse.Namespace, settings: Settings) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from service.storage import SqlRecordStore, check_schema, open_database
    from service.storage import export as export_records

    async def run() -> tuple[str, int]:
        async with open_database(settings.database_url) as database:
            await check_schema(database)
            store = SqlRecordStore(database)
            market = options.market or await stored_market(store, settings)
            if options.market and await store.latest_run(market) is None:
                raise LivewickError(f"the database holds no such market: {market}")
            with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
                task = bar.add_task(f"exporting {options.what}", total=1.0)
                return market, await export_records(
                    store,
                    options.what,
                    market,
                    options.out,
                    options.format,
                    options.start,
                    options.end,
                    lambda done, rows: bar.update(task, completed=done),
                )

    check_out(options.out, files_in_use(settings))
    with cannot_write(options.out):
        market, count = asyncio.run(run())
    print(f"{count:,} {options.what} of {market} in {options.out}")


def settings(options: argparse.Namespace, settings: Settings) -> None:
    for name, value in settings.masked().items():
        print(f"{name}={_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _quit(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)
