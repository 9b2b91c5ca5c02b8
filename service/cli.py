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

from service.ports import ConfigurationError, LivewickError
from service.settings import Settings, load_settings

Command = Callable[[argparse.Namespace, Settings], None]


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

    from models.grid import fill_gaps
    from service.feed.replay import finest_tick, read_candles
    from service.replay import make_learner
    from service.replay import replay as run
    from service.scorecard import print_scorecard

    interval_ms = settings.interval_ms
    market = f"{settings.exchange}:{settings.symbols[0]}"
    candles = list(read_candles(options.file, market))
    if not candles:
        raise LivewickError(f"{options.file} holds no candle")
    tick = options.tick or finest_tick(candles)
    grid = list(islice(fill_gaps(candles, interval_ms), options.limit))
    shown = track(grid, "replaying", console=Console(stderr=True), disable=not sys.stderr.isatty())
    result = run(shown, make_learner(settings.learner(market, interval_ms, tick)), options.steps)
    if options.json:
        print(json.dumps(asdict(result), allow_nan=False))
        return
    console = Console()
    print_scorecard(result.score, console)
    each = result.seconds / max(result.candles, 1) * 1000
    console.print(f"{result.candles:,} candles in {result.seconds:.1f} s, {each:.2f} ms each")


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

    market = options.market or f"{settings.exchange}:{settings.symbols[0]}"

    async def run() -> int:
        async with open_database(settings.database_url) as database:
            await check_schema(database)
            with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
                task = bar.add_task(f"exporting {options.what}", total=1.0)
                return await export_records(
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
        count = asyncio.run(run())
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


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


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
