"""Simulated exchange, unmodified ccxt, the real service, its database, REST and WebSocket: all must agree."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import psutil
from websockets.sync.client import connect

from tests.support.processes import Service, exchange, service

MARKET = "binance:ETH/USDT"
LIVE_CANDLES = 8
CANDLE_FIELDS = ("open_time", "open", "high", "low", "close", "volume")


def frames_of_live_candles(running: Service, count: int) -> list[dict[str, Any]]:
    """Follow /ws until ``count`` steps have come."""
    frames: list[dict[str, Any]] = []
    with connect(running.url.replace("http", "ws") + "/ws", max_size=None) as socket:
        while sum(frame["type"] == "step" for frame in frames) < count:
            frames.append(json.loads(socket.recv(timeout=30), parse_constant=_never))
    return frames


def _never(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def database_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{folder / 'data' / 'livewick.db'}?mode=ro", uri=True) as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute(f"SELECT * FROM {table} ORDER BY open_time")]  # noqa: S608
    database.close()
    return rows


def stored(running: Service, path: str, open_times: set[int]) -> dict[int, dict[str, Any]]:
    """Return the rows of a history route for these times, waiting until the last of them is stored."""
    newest = max(open_times)
    running.wait_until("stored", f"{path}?start={newest}", lambda got: bool(got["items"]), seconds=10)
    return {row["open_time"]: row for row in running.rows(path) if row["open_time"] in open_times}


def test_exchange_database_rest_and_websocket_agree_candle_by_candle(tmp_path: Path) -> None:
    with exchange(tmp_path, "--seed", "7") as market, service(tmp_path, market) as running:
        running.wait_until_live()
        frames = frames_of_live_candles(running, LIVE_CANDLES)

        assert frames[0]["type"] == "hello"
        numbers = [frame["seq"] for frame in frames[1:]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

        told = {frame["candle"]["open_time"]: frame for frame in frames if frame["type"] == "prediction"}
        steps = {frame["step"]["open_time"]: frame["step"] for frame in frames if frame["type"] == "step"}
        order = [
            (frame["candle"] if frame["type"] == "prediction" else frame["step"])["open_time"]
            for frame in frames
            if frame["type"] in ("prediction", "step")
        ]
        assert order == sorted(order)
        for open_time in steps.keys() & told.keys():
            first = next(i for i, frame in enumerate(frames) if frame is told[open_time])
            second = next(i for i, frame in enumerate(frames) if frame.get("step") is steps[open_time])
            assert first < second

        candles = running.rows("/candles")
        truth = market.candles(candles[0]["open_time"], candles[-1]["open_time"] + 1000)
        assert [[candle[field] for field in CANDLE_FIELDS] for candle in candles] == truth
        assert len(candles) >= 60 + LIVE_CANDLES - 1

        predictions = stored(running, "/predictions", {frame["prediction"]["open_time"] for frame in told.values()})
        for frame in told.values():
            assert predictions[frame["prediction"]["open_time"]] == frame["prediction"]
        rows = stored(running, "/steps", set(steps))
        for open_time, step in steps.items():
            assert step["trend_correct"] is None, "a trend comes due later, and only its row changes then"
            assert {**rows[open_time], "trend_correct": None} == step

        in_database = {row["open_time"]: row for row in database_rows(tmp_path, "steps")}
        assert all(in_database[open_time]["loss"] == step["loss"] for open_time, step in steps.items())
        assert len(database_rows(tmp_path, "candles")) >= len(candles)


def test_failures_57_sigterm_ends_it_cleanly_and_the_next_start_resumes_the_same_run(tmp_path: Path) -> None:
    with exchange(tmp_path) as market:
        with service(tmp_path, market) as running:
            running.wait_until_live()
            run = running.get("/model")["run"]
            children = running.children()
            assert children
            started = time.monotonic()
            code = running.end(signal.SIGTERM)
            seconds = time.monotonic() - started
            assert code == 0, running.log.read_text()
            assert seconds <= 8, f"took {seconds:.1f} s"
            assert not [child for child in children if psutil.pid_exists(child.pid)]
            assert "Traceback" not in running.log.read_text()
        before = database_rows(tmp_path, "steps")
        with service(tmp_path, market) as again:
            again.wait_until_live()
            assert again.get("/model")["run"] == run
            after = again.rows("/steps")
    assert [row["open_time"] for row in after] == [
        after[0]["open_time"] + index * 1000 for index in range(len(after))
    ], "one step per second, each once, across the restart"
    assert after[0]["open_time"] == before[0]["open_time"]
    assert [row["skipped"] for row in after] == ["warmup"] + [None] * (len(after) - 1)
