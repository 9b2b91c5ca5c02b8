"""The ``livewick`` command: its grammar, and how an error ends it.

Errors are one clear line on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from service import commands
from service.ports import ConfigurationError, LivewickError
from service.settings import Settings, load_settings

LARGEST = 2**63 - 1
"""The largest whole number that a database knows."""
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
    subs = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        sub = subs.add_parser(name, help=text, description=text)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        sub.set_defaults(command=command)
        return sub

    add("serve", commands.serve, "Migrate, then run the service.")
    add("migrate", commands.migrate, "Bring the database to the newest schema.")
    sub = add("replay", commands.replay, "Run the learner over a candle file exactly as live and print the scorecard.")
    sub.add_argument("file", type=Path, metavar="FILE")
    sub.add_argument("--limit", type=positive, metavar="N", help="stop after N candles")
    sub.add_argument("--tick", type=price, metavar="SIZE", help="price tick; default: finest decimal place in FILE")
    sub.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    sub.add_argument("--steps", type=Path, metavar="OUT.csv", help="write every Step as CSV")
    sub = add(
        "pretrain", commands.pretrain, "Train in epochs over a candle file, or over what is stored, before going live."
    )
    sub.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: the market's stored candles")
    sub.add_argument("--limit", type=positive, metavar="N", help="use the first N candles of FILE")
    sub.add_argument("--tick", type=price, metavar="SIZE", help="price tick; default: finest decimal place in FILE")
    sub.add_argument("--epochs", type=positive, default=10, metavar="N", help="at most so many (default 10)")
    sub.add_argument("--batch", type=positive, default=256, metavar="N", help="samples a step (default 256)")
    sub.add_argument("--holdout", type=share, default=0.1, metavar="SHARE", help="last part that only judges")
    sub.add_argument("--patience", type=positive, default=2, metavar="N", help="epochs without gain before stopping")
    sub.add_argument("--out", type=Path, default=Path("data/pretrained.ckpt"), metavar="PATH")
    sub = add("simulate", commands.simulate, "Run an exchange on loopback that speaks Binance's public spot protocol.")
    sub.add_argument("--port", type=port, required=True, metavar="P")
    sub.add_argument("--seed", type=natural, default=0, metavar="S")
    sub.add_argument("--candles", type=Path, metavar="FILE", help="play this candle file instead of a seeded price")
    sub.add_argument("--speed", type=price, default=1.0, metavar="X", help="run time X times faster")
    sub.add_argument("--faults", type=Path, metavar="FILE", help="JSON plan of what goes wrong, and when")
    sub = add("export", commands.export, "Write stored records to a file.")
    sub.add_argument("out", type=Path, metavar="OUT", help="the file to write; .csv.gz is compressed")
    sub.add_argument("--what", choices=("candles", "predictions", "steps"), required=True)
    sub.add_argument("--format", choices=("csv", "parquet"), default="csv")
    sub.add_argument("--market", metavar="NAME", help="EXCHANGE:SYMBOL; default: the one in the settings")
    sub.add_argument("--start", type=natural, metavar="MS", help="first open_time")
    sub.add_argument("--end", type=natural, metavar="MS", help="open_time to stop before")
    add("settings", commands.settings, "Print the settings in force, secrets masked.")
    return top


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
    if len(text) > len(str(LARGEST)) or int(text) > LARGEST:
        raise argparse.ArgumentTypeError(f"is above {LARGEST}")
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
