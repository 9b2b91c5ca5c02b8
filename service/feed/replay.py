"""Read candle files: CSV, plain or gzip, as published on data sites and written by ``livewick export``."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import TextIO

from models.candle import Candle, InvalidCandle
from service.ports import ConfigurationError

TIMES = ("ts_ms", "open_time")
VALUES = ("open", "high", "low", "close", "volume")
_MAX_DECIMALS = 12


def read_candles(path: Path, market: str) -> Iterator[Candle]:
    """Yield the file's candles, ascending; intervals without trades may be absent, other columns are ignored.

    Raises ConfigurationError, naming file and line, for a file that cannot be read, a wrong header, a row that is no
    candle, and times that do not rise.
    """
    last = 0
    for number, row in _rows(path):
        candle = _candle(path, number, row, market)
        if candle.open_time <= last:
            raise ConfigurationError(f"{path}:{number}: time {candle.open_time} does not come after {last}")
        last = candle.open_time
        yield candle


def finest_tick(source: Path | Iterable[Candle]) -> float | None:
    """Return the price tick that the finest decimal place of any price suggests, None without candles.

    Zeros at the end of a price do not count: files write ``1870.76000000``.
    """
    decimals: int | None = None
    for text in _price_texts(source):
        decimals = max(decimals or 0, _decimals(text))
    return None if decimals is None else float(f"1e-{decimals}")


def _price_texts(source: Path | Iterable[Candle]) -> Iterator[str]:
    if isinstance(source, Path):
        for _, row in _rows(source):
            yield from row[1:5]
    else:
        for candle in source:
            yield from map(repr, (candle.open, candle.high, candle.low, candle.close))


def _decimals(text: str) -> int:
    mantissa, _, exponent = text.lower().partition("e")
    _, _, fraction = mantissa.partition(".")
    try:
        places = len(fraction.rstrip("0")) - int(exponent or 0)
    except ValueError:  # not a number at all, which is for read_candles to say
        return 0
    return min(max(places, 0), _MAX_DECIMALS)


def _rows(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield line number, time, open, high, low, close and volume of each row, found by the header's names."""
    try:
        with _open(path) as file:
            reader = csv.reader(file)
            header = next(reader, [])
            pick = itemgetter(*_places(path, header))
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ConfigurationError(f"{path}:{reader.line_num}: {len(row)} fields, not {len(header)}")
                yield reader.line_num, pick(row)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not a text file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error})") from error
    except csv.Error as error:
        raise ConfigurationError(f"{path}:{reader.line_num}: {error}") from error


def _places(path: Path, header: list[str]) -> list[int]:
    """Return where the time and the five values stand."""
    times = [name for name in TIMES if name in header]
    if not times or any(name not in header for name in VALUES):
        raise ConfigurationError(f"{path}:1: the header must name {','.join((TIMES[0], *VALUES))} (or {TIMES[1]})")
    if len(times) > 1:
        raise ConfigurationError(f"{path}:1: the header names two times, {times[0]} and {times[1]}")
    names = (*times, *VALUES)
    if double := [name for name in names if header.count(name) > 1]:
        raise ConfigurationError(f"{path}:1: the header names {double[0]} twice")
    return [header.index(name) for name in names]


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _candle(path: Path, number: int, row: tuple[str, ...], market: str) -> Candle:
    try:
        open_, high, low, close, volume = map(float, row[1:])
        return Candle(market, int(row[0]), open_, high, low, close, volume)
    except InvalidCandle as error:
        raise ConfigurationError(f"{path}:{number}: {error}") from None
    except ValueError:
        raise ConfigurationError(f"{path}:{number}: a field is not a number") from None
