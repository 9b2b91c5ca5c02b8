"""What is fuzzed: each target takes any bytes, and an exception that it lets through is a bug."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

from models.candle import Candle, InvalidCandle
from service.api.predict import parse_body, parse_candles
from service.api.problem import Problem
from service.api.stream import parse_client_frame
from service.feed.replay import finest_tick, read_candles
from service.feed.rows import Grid, read_candle
from service.ports import ConfigurationError
from service.strict_json import InvalidJSON, decode

MARKET = "binance:ETH/USDT"
GRID = Grid(1000)
NOW = 1_700_000_000_000
_FILE = Path(tempfile.mkdtemp(prefix="livewick-fuzz-")) / "candles.csv"


def row(data: bytes) -> None:
    """A row as an exchange or a caller of POST /predict sends it."""
    with contextlib.suppress(Problem):
        _, rows = parse_body(data)
        for candle in asyncio.run(parse_candles(rows, MARKET, 1000)):
            check(candle)
    try:
        sent = decode(data)
    except InvalidJSON:
        return
    for each in sent if isinstance(sent, list) else [sent]:
        with contextlib.suppress(InvalidCandle):
            check(read_candle(MARKET, each, GRID, NOW))


def candle_file(data: bytes) -> None:
    """A candle file; after a first byte that is odd, a compressed one; after a 3, one that is no gzip at all."""
    kind, content = data[:1], data[1:]
    packed = bool(kind and kind[0] % 2)
    path = _FILE.with_suffix(".csv.gz") if packed else _FILE
    path.write_bytes(gzip.compress(content, 1) if packed and kind != b"\x03" else content)
    with contextlib.suppress(ConfigurationError):
        last = 0
        for candle in read_candles(path, MARKET):
            check(candle)
            assert candle.open_time > last
            last = candle.open_time
        tick = finest_tick(path)
        assert tick is None or 0 < tick <= 1


def client_frame(data: bytes) -> None:
    """A text frame of a WebSocket client, also one that is no UTF-8."""
    for text in (data.decode(errors="ignore"), data.decode(errors="surrogateescape")):
        parsed = parse_client_frame(text)
        assert parsed is None or parsed == {"type": "ping"} or isinstance(parsed["ticket"], str)


def check(candle: Candle) -> None:
    """Hold a candle that got through against what a candle is."""
    assert 0 < candle.low <= min(candle.open, candle.close) <= max(candle.open, candle.close) <= candle.high
    assert math.isfinite(candle.high)
    assert 0 <= candle.volume < math.inf
    assert type(candle.open_time) is int


HEADER = b"ts_ms,open,high,low,close,volume\r\n"
ROW = b"1559865600000,250.1,250.2,250.0,250.15,3.2\r\n"
TARGETS: dict[str, tuple[Callable[[bytes], None], list[bytes]]] = {
    "row": (
        row,
        [
            b"[[1559865600000,250.1,250.2,250.0,250.15,3.2]]",
            b'[[1559865600000,"250.1","250.2","250.0","250.15","3.2",true]]',
            b'{"candles":[[1000,1,1,1,1,0],[2000,1,1,1,1,1]],"market":"binance:ETH/USDT"}',
            b"[[NaN,1e999,-1,null,{},[]]]",
        ],
    ),
    "candle_file": (
        candle_file,
        [kind + HEADER + ROW for kind in (b"\x00", b"\x01", b"\x03")]
        + [b"\x00\xef\xbb\xbf" + HEADER.replace(b"ts_ms", b"open_time") + ROW],
    ),
    "client_frame": (
        client_frame,
        [b'{"type":"ping"}', b'{"type":"auth","ticket":"abc"}', b'{"type":"\\ud800"}', b"[" * 2000],
    ),
}
"""By name: the target, and inputs to begin with."""
