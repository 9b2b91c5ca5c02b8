"""Candle files: what is read, and how trouble is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from models.candle import Candle
from service.feed.replay import finest_tick, read_candles
from service.ports import ConfigurationError

MARKET = "file:ETH/USDT"
HEADER = "ts_ms,open,high,low,close,volume\n"
ROWS = "1559347200000,266.23,266.23,266.19,266.2,3.5\n1559347202000,266.2,266.25,266.2,266.25,1e-4\n"


def write(folder: Path, text: str, name: str = "candles.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["candles.csv", "candles.csv.gz"])
@pytest.mark.parametrize("first", ["ts_ms", "open_time"])
def test_a_file_is_read_plain_or_gzipped_with_either_header(tmp_path: Path, name: str, first: str) -> None:
    path = write(tmp_path, HEADER.replace("ts_ms", first) + ROWS, name)
    assert list(read_candles(path, MARKET)) == [
        Candle(MARKET, 1559347200000, 266.23, 266.23, 266.19, 266.2, 3.5),
        Candle(MARKET, 1559347202000, 266.2, 266.25, 266.2, 266.25, 0.0001),
    ]


def test_columns_are_found_by_name_so_that_an_exported_file_can_be_replayed(tmp_path: Path) -> None:
    exported = "market,open_time,open,high,low,close,volume,source\r\nbinance:X/Y,5,1.5,2.25,1.0,2.0,9.125,live\r\n"
    path = write(tmp_path, exported)
    assert list(read_candles(path, MARKET)) == [Candle(MARKET, 5, 1.5, 2.25, 1.0, 2.0, 9.125)]
    assert finest_tick(path) == 0.01, "of prices only"
    shuffled = write(tmp_path, "close,volume,ts_ms,high,open,low\n2,9,5,3,1.5,1\n", "shuffled.csv")
    assert list(read_candles(shuffled, MARKET)) == [Candle(MARKET, 5, 1.5, 3.0, 1.0, 2.0, 9.0)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ":1: the header must name ts_ms,open,high,low,close,volume"),
        ("time,o,h,l,c,v\n", ":1: the header must name ts_ms,open,high,low,close,volume"),
        (HEADER.replace("close,", ""), ":1: the header must name"),
        (HEADER.replace("close", "open"), ":1: the header must name"),
        (HEADER.replace("open", "ts_ms,open"), ":1: the header names ts_ms twice"),
        (HEADER.replace("open", "open_time,open"), ":1: the header names two times, ts_ms and open_time"),
        (HEADER + "1559347200000,1,1,1,1\n", ":2: 5 fields, not 6"),
        (HEADER + ROWS + "x,1,1,1,1,1\n", ":4: a field is not a number"),
        (HEADER + "1559347200000,1,1,2,1,1\n", ":2: low was 2.0, above high 1.0"),
        (HEADER + "1559347200000,nan,1,1,1,1\n", ":2: a price or the volume was not finite"),
        (HEADER + ROWS + ROWS, ":4: time 1559347200000 does not come after 1559347202000"),
        (HEADER + "1559347200000,1,1,1,1,-1\n", ":2: volume was -1.0, below 0"),
        (HEADER + "-5,1,1,1,1,1\n", ":2: open_time was -5"),
    ],
)
def test_a_bad_file_is_refused_naming_the_line(tmp_path: Path, text: str, line: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        list(read_candles(path, MARKET))
    assert str(caught.value).startswith(f"{path}{line}")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    cut = write(tmp_path, HEADER + ROWS * 50, "cut.csv.gz")
    cut.write_bytes(cut.read_bytes()[:-12])
    plain = write(tmp_path, HEADER, "plain.csv").rename(tmp_path / "not-gzip.gz")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for path in (tmp_path / "absent.csv", tmp_path, cut, plain, binary):
        with pytest.raises(ConfigurationError, match=str(path)):
            list(read_candles(path, MARKET))


def test_good_rows_come_out_before_the_bad_one_is_reached(tmp_path: Path) -> None:
    candles = read_candles(write(tmp_path, HEADER + ROWS + "bad\n"), MARKET)
    assert next(candles).open_time == 1559347200000


@pytest.mark.parametrize(
    ("prices", "tick"),
    [
        (("266", "266"), 1.0),
        (("266.2", "266"), 0.1),
        (("266.23", "266.2"), 0.01),
        (("266.23000000", "266.20000000"), 0.01),
        (("0.00001234", "0.00001"), 1e-8),
        (("1e-5", "2e-5"), 1e-5),
    ],
)
def test_the_tick_is_the_finest_decimal_place_of_any_price(
    tmp_path: Path, prices: tuple[str, str], tick: float
) -> None:
    row = "{0},{1},{1},{1},{1},1\n"
    path = write(tmp_path, HEADER + "".join(row.format(1559347200000 + n, price) for n, price in enumerate(prices)))
    assert finest_tick(path) == tick
    assert finest_tick(list(read_candles(path, MARKET))) == tick


def test_a_file_without_candles_has_no_tick(tmp_path: Path) -> None:
    assert finest_tick(write(tmp_path, HEADER)) is None
