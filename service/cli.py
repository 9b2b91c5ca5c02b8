"""The ``livewick`` command.

Errors are one clear line on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from service.ports import ConfigurationError, LivewickError, RecordStore
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from models.candle import Candle
    from models.config import LearnerConfig

Command = Callable[[argparse.Namespace, Settings], None]
MAX_STORED_CANDLES = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        options.command(options, load_settings())
    except Exception as error:  # the edge: whatever ends a command is reported here, once
        return report(error, options.debug)
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(prog="livewick", description="Live online learning on market candles.")
    top.add_argument("--version", action="version", version=f"livewick {version('livewick')}")
    top.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        sub.set_defaults(command=command)
        return sub

    add("serve", serve, "Migrate, then run the service.")
    add("migrate", migrate, "Bring the database to the newest schema.")
    sub = add("replay", replay, "Run the learner over a candle file exactly as live and print the scorecard.")
    sub.add_argument("file", type=Path, metavar="FILE")
    sub.add_argument("--limit", type=positive, metavar="N", help="stop after N candles")
    sub.add_argument("--tick", type=price, metavar="SIZE", help="price tick; default: finest decimal place in FILE")
    sub.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    sub.add_argument("--steps", type=Path, metavar="OUT.csv", help="write every Step as CSV")
    sub = add("pretrain", pretrain, "Train in epochs over a candle file, or over what is stored, before going live.")
    sub.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: the market's stored candles")
    sub.add_argument("--limit", type=positive, metavar="N", help="use the first N candles of FILE")
    sub.add_argument("--tick", type=price, metavar="SIZE", help="price tick; default: finest decimal place in FILE")
    sub.add_argument("--epochs", type=positive, default=10, metavar="N", help="at most so many (default 10)")
    sub.add_argument("--batch", type=positive, default=256, metavar="N", help="samples a step (default 256)")
    sub.add_argument("--holdout", type=share, default=0.1, metavar="SHARE", help="last part that only judges")
    sub.add_argument("--patience", type=positive, default=2, metavar="N", help="epochs without gain before stopping")
    sub.add_argument("--out", type=Path, default=Path("data/pretrained.ckpt"), metavar="PATH")
    sub = add("simulate", simulate, "Run an exchange on loopback that speaks Binance's public spot protocol.")
    sub.add_argument("--port", type=port, required=True, metavar="P")
    sub.add_argument("--seed", type=natural, default=0, metavar="S")
    sub.add_argument("--candles", type=Path, metavar="FILE", help="play this candle file instead of a seeded price")
    sub.add_argument("--speed", type=price, default=1.0, metavar="X", help="run time X times faster")
    sub.add_argument("--faults", type=Path, metavar="FILE", help="JSON plan of what goes wrong, and when")
    sub = add("export", export, "Write stored records to a file.")
    sub.add_argument("out", type=Path, metavar="OUT", help="the file to write; .csv.gz is compressed")
    sub.add_argument("--what", choices=("candles", "predictions", "steps"), required=True)
    sub.add_argument("--format", choices=("csv", "parquet"), default="csv")
    sub.add_argument("--market", metavar="NAME", help="EXCHANGE:SYMBOL; default: the one in the settings")
    sub.add_argument("--start", type=natural, metavar="MS", help="first open_time")
    sub.add_argument("--end", type=natural, metavar="MS", help="open_time to stop before")
    add("settings", settings, "Print the settings in force, secrets masked.")
    return top


def serve(options: argparse.Namespace, settings: Settings) -> None:
    signal.signal(signal.SIGTERM, _quit)  # until the service takes over: importing takes seconds
    import uvloop

    from service.app import serve as serve_app
    from service.log import configure_logging

    configure_logging(settings.log_format, settings.log_level)
    uvloop.run(serve_app(settings))


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
    from service.scorecard import print_scorecard

    grid, config = read_grid(options.file, options.tick, options.limit, settings)
    learner = make_learner(config, read_pretrained(settings.pretrained))
    shown = track(grid, "replaying", console=Console(stderr=True), disable=not sys.stderr.isatty())
    result = run(shown, learner, options.steps)
    if options.json:
        print(json.dumps(asdict(result), allow_nan=False))
        return
    console = Console()
    print_scorecard(result.score, console)
    each = result.seconds / max(result.candles, 1) * 1000
    console.print(f"{result.candles:,} candles in {result.seconds:.1f} s, {each:.2f} ms each")


def pretrain(options: argparse.Namespace, settings: Settings) -> None:
    from models.checkpoint import dump_state
    from models.pretrain import PretrainConfig
    from models.pretrain import pretrain as run
    from service.pretrain_progress import shown
    from service.pretrained import write_pretrained
    from service.replay import make_learner

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
    from service.feed.replay import finest_tick, read_candles

    market = f"{settings.exchange}:{settings.symbols[0]}"
    candles = list(read_candles(file, market))
    if not candles:
        raise LivewickError(f"{file} holds no candle")
    try:
        grid = list(islice(fill_gaps(candles, settings.interval_ms), limit))
    except ValueError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    return grid, settings.learner(market, settings.interval_ms, tick or finest_tick(candles))


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
    from service.simulator.server import SimulatedExchange, run_simulator

    async def run() -> None:
        exchange = SimulatedExchange(
            symbols=settings.symbols,
            seed=options.seed,
            port=options.port,
            candles=options.candles,
            speed=options.speed,
            faults=read_plan(options.faults) if options.faults else (),
        )
        task = asyncio.create_task(run_simulator(exchange))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        print(f"LIVEWICK_CCXT='{json.dumps(exchange.ccxt_config())}'", flush=True)
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
            market = options.market or await stored_market(SqlRecordStore(database), settings)
            with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
                task = bar.add_task(f"exporting {options.what}", total=1.0)
                return market, await export_records(
                    SqlRecordStore(database),
                    options.what,
                    market,
                    options.out,
                    options.format,
                    options.start,
                    options.end,
                    lambda done, rows: bar.update(task, completed=done),
                )

    try:
        market, count = asyncio.run(run())
    except OSError as error:
        raise LivewickError(f"{options.out} cannot be written: {error.strerror}") from None
    print(f"{count:,} {options.what} of {market} in {options.out}")


def settings(options: argparse.Namespace, settings: Settings) -> None:
    for name, value in settings.masked().items():
        print(f"{name}={_shown(value)}")


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    value = natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def natural(text: str) -> int:
    """Parse a whole number from 0."""
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError("is not a whole number")
    return int(text)


def port(text: str) -> int:
    """Parse a TCP port."""
    value = natural(text)
    if value > 65535:
        raise argparse.ArgumentTypeError("is above 65535")
    return value


def price(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("is not a finite number above 0")
    return value


def share(text: str) -> float:
    """Parse a number between 0 and 1."""
    value = price(text)
    if value >= 1:
        raise argparse.ArgumentTypeError("must be below 1")
    return value


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


def report(raised: Exception, debug: bool) -> int:
    """Print what ended the command as one line; returns the exit code."""
    if debug:
        traceback.print_exception(raised)
    error: BaseException = raised
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error).strip().replace("\n", " ") or type(error).__name__
    if not isinstance(error, LivewickError):
        text = f"internal error: {type(error).__name__}: {text} (--debug shows where)"
    print(f"livewick: {text}", file=sys.stderr)
    return 2 if isinstance(error, ConfigurationError) else 1
