"""The simulated exchange speaks Binance's public protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from models.candle import Candle
from service.ports import ConfigurationError
from service.simulator.faults import KINDS, Fault, random_plan, read_fault, read_plan
from service.simulator.server import SimulatedExchange, run_simulator
from tests.support.eventually import eventually


@pytest.fixture
async def exchange() -> AsyncIterator[SimulatedExchange]:
    async with SimulatedExchange(symbols=("ETH/USDT", "BTC/USDT"), speed=20) as exchange:
        yield exchange


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def get(session: aiohttp.ClientSession, exchange: SimulatedExchange, path: str, **query: Any) -> tuple[int, Any]:
    async with session.get(f"http://127.0.0.1:{exchange.port}{path}", params=query) as answer:
        return answer.status, await answer.json()


async def klines(session: aiohttp.ClientSession, exchange: SimulatedExchange, **query: Any) -> tuple[int, Any]:
    return await get(session, exchange, "/api/v3/klines", **{"symbol": "ETHUSDT", "interval": "1s", **query})


async def test_ping_time_and_symbols_are_told(exchange: SimulatedExchange, session: aiohttp.ClientSession) -> None:
    assert await get(session, exchange, "/api/v3/ping") == (200, {})
    _, told = await get(session, exchange, "/api/v3/time")
    assert abs(told["serverTime"] - exchange.clock.now_ms()) < 20_000
    _, info = await get(session, exchange, "/api/v3/exchangeInfo")
    assert [symbol["symbol"] for symbol in info["symbols"]] == ["ETHUSDT", "BTCUSDT"]


async def test_klines_take_limit_start_and_end_as_binance_does(
    exchange: SimulatedExchange, session: aiohttp.ClientSession
) -> None:
    start = int(exchange.clock.now_ms()) // 1_000 * 1_000 - 90_000_000
    _, rows = await klines(session, exchange, startTime=start, limit=3)
    assert [row[0] for row in rows] == [start, start + 1_000, start + 2_000]
    _, rows = await klines(session, exchange, startTime=start, endTime=start + 1_000)
    assert [row[0] for row in rows] == [start, start + 1_000]
    _, rows = await klines(session, exchange, endTime=start, limit=2)
    assert [row[0] for row in rows] == [start - 1_000, start]
    _, rows = await klines(session, exchange)
    assert len(rows) == 500
    _, rows = await klines(session, exchange, limit=5_000)
    assert len(rows) == 1_000
    assert rows[-1][0] > exchange.clock.now_ms() - 20_000
    _, rows = await klines(session, exchange, startTime=start + 10**9)
    assert rows == []
    _, rows = await klines(session, exchange, startTime=0, limit=1)
    assert rows[0][0] == 1_502_942_400_000


async def test_a_row_is_written_as_binance_writes_it(
    exchange: SimulatedExchange, session: aiohttp.ClientSession
) -> None:
    start = int(exchange.clock.now_ms()) // 1_000 * 1_000 - 500_000
    _, rows = await klines(session, exchange, startTime=start, limit=200)
    for row in rows:
        assert len(row) == 12
        assert row[6] == row[0] + 999
        assert all(len(text.partition(".")[2]) == 8 for text in row[1:6])
    quiet = [row for row in rows if row[8] == 0]
    assert quiet
    assert all(row[1] == row[2] == row[3] == row[4] and row[5] == "0.00000000" for row in quiet)


async def test_a_minute_is_made_of_its_seconds(exchange: SimulatedExchange, session: aiohttp.ClientSession) -> None:
    start = int(exchange.clock.now_ms()) // 60_000 * 60_000 - 600_000
    _, minute = await klines(session, exchange, interval="1m", startTime=start, limit=1)
    _, seconds = await klines(session, exchange, startTime=start, limit=60)
    assert minute[0][1] == seconds[0][1]
    assert minute[0][4] == seconds[-1][4]
    assert float(minute[0][2]) == max(float(row[2]) for row in seconds)
    assert float(minute[0][5]) == pytest.approx(sum(float(row[5]) for row in seconds))
    assert minute[0][8] == sum(row[8] for row in seconds)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"symbol": "DOGEUSDT"}, -1121),
        ({"interval": "2s"}, -1120),
        ({"symbol": ""}, -1102),
        ({"interval": ""}, -1102),
        ({"limit": "many"}, -1100),
    ],
)
async def test_bad_queries_get_binance_s_codes(
    exchange: SimulatedExchange, session: aiohttp.ClientSession, query: dict[str, str], code: int
) -> None:
    status, body = await klines(session, exchange, **query)
    assert (status, body["code"]) == (400, code)


async def test_a_subscriber_gets_partial_and_final_frames_that_equal_rest(
    exchange: SimulatedExchange, session: aiohttp.ClientSession
) -> None:
    async with session.ws_connect(f"ws://127.0.0.1:{exchange.port}/stream/ws/0") as socket:
        await socket.send_json({"method": "SUBSCRIBE", "params": ["ethusdt@kline_1s"], "id": 1})
        assert await socket.receive_json() == {"result": None, "id": 1}
        frames = [await socket.receive_json() for _ in range(20)]
    finals = {frame["k"]["t"]: frame["k"] for frame in frames if frame["k"]["x"]}
    partials = {frame["k"]["t"] for frame in frames if not frame["k"]["x"]}
    assert len(finals) >= 9
    assert len(partials & finals.keys()) >= 9
    _, rows = await klines(session, exchange, startTime=min(finals), limit=len(finals))
    for row in rows:
        k = finals[row[0]]
        assert [k["t"], k["o"], k["h"], k["l"], k["c"], k["v"], k["T"], k["n"]] == [*row[:7], row[8]]


async def test_the_socket_answers_requests_it_does_not_understand(
    exchange: SimulatedExchange, session: aiohttp.ClientSession
) -> None:
    async with session.ws_connect(f"ws://127.0.0.1:{exchange.port}/ws") as socket:
        for text in ("hello", "[]", '{"id": 3}', '{"method": "DANCE", "id": 4}'):
            await socket.send_str(text)
            assert "error" in await socket.receive_json()
        await socket.send_json({"method": "SUBSCRIBE", "params": ["ethusdt@kline_2s", "x@depth"], "id": 5})
        assert await socket.receive_json() == {"result": None, "id": 5}
        await socket.send_json({"method": "LIST_SUBSCRIPTIONS", "id": 6})
        assert await socket.receive_json() == {"result": [], "id": 6}


PLAYED = (
    Candle("simulated:ETH/USDT", 1_000, 5, 6, 4, 5, 1),
    Candle("simulated:ETH/USDT", 2_000, 5, 7, 5, 7, 1),
    Candle("simulated:ETH/USDT", 4_000, 7, 7, 6, 6, 2),
)


async def test_candles_are_played_over_and_over_on_wall_time(session: aiohttp.ClientSession) -> None:
    async with SimulatedExchange(candles=PLAYED) as exchange:
        start = int(exchange.clock.now_ms()) // 4_000 * 4_000 - 8_000
        _, rows = await klines(session, exchange, startTime=start, limit=8)
    assert [float(row[4]) for row in rows] == [5, 7, 7, 6] * 2
    assert [float(row[5]) for row in rows] == [1, 1, 0, 2] * 2


@pytest.mark.parametrize("candles", [[], PLAYED[::-1], [PLAYED[0], replace(PLAYED[1], open_time=2_500)]])
def test_candles_that_cannot_be_played_are_refused(candles: list[Candle]) -> None:
    with pytest.raises(ConfigurationError, match="to play"):
        SimulatedExchange(candles=candles)


async def test_a_port_in_use_is_told(exchange: SimulatedExchange) -> None:
    with pytest.raises(ConfigurationError, match=f"port {exchange.port} is in use"):
        await run_simulator(SimulatedExchange(port=exchange.port))


def test_symbols_that_are_no_spot_symbols_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="spot symbols like ETH/USDT, not 'ETH/USDT:USDT'"):
        SimulatedExchange(symbols=("ETH/USDT:USDT",))


@pytest.mark.parametrize("speed", [0.0, -1.0, 1_001.0, float("nan")])
def test_a_speed_that_it_cannot_keep_is_refused(speed: float) -> None:
    with pytest.raises(ConfigurationError, match="up to 1000 times as fast"):
        SimulatedExchange(speed=speed)


async def test_it_serves_until_cancelled(session: aiohttp.ClientSession) -> None:
    exchange = SimulatedExchange()
    serving = asyncio.create_task(run_simulator(exchange))
    await eventually(lambda: exchange.port)
    assert await get(session, exchange, "/api/v3/ping") == (200, {})
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(session, exchange, "/api/v3/ping")


# --- faults and truth -------------------------------------------------------------------------------------------------


async def test_a_fault_ordered_at_the_admin_endpoint_happens_and_the_truth_can_be_asked(
    exchange: SimulatedExchange, session: aiohttp.ClientSession
) -> None:
    async with session.post(
        f"http://127.0.0.1:{exchange.port}/admin/faults", json={"kind": "erase", "at_seconds": 0, "count": 3}
    ) as answer:
        assert answer.status == 200
    await eventually(lambda: exchange.book.history)
    hole = min(exchange.truth._erased["ETHUSDT"])
    await exchange.clock.sleep_until(hole + 5_000)
    _, told = await get(session, exchange, "/admin/truth", symbol="ETHUSDT", start=hole - 1_000, end=hole + 4_000)
    assert [row[0] for row in told] == [hole - 1_000, hole + 3_000]
    _, rows = await klines(session, exchange, startTime=hole - 1_000, endTime=hole + 3_999)
    assert rows == told
    _, faults = await get(session, exchange, "/admin/faults")
    assert [fault["kind"] for fault in faults["done"]] == ["erase"]
    assert faults["kinds"] == KINDS


async def test_senseless_orders_are_refused(exchange: SimulatedExchange, session: aiohttp.ClientSession) -> None:
    orders = ([1], {"kind": "dance"}, {"kind": "drop", "at_seconds": "now"}, {"kind": "drop", "seconds": -1})
    for text in (*map(json.dumps, orders), '{"kind": "erase", "count": "abc"}', "[" * 100_000):
        async with session.post(f"http://127.0.0.1:{exchange.port}/admin/faults", data=text) as answer:
            assert answer.status == 400
    assert exchange.book.waiting(0) == []


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"faults": [{"kind": "cut", "at_seconds": 10, "seconds": 2.5}, {"kind": "drop"}]}))
    assert read_plan(path) == [Fault("cut", 10_000, 2_500), Fault("drop", 0)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "not JSON"),
        ("7", 'a plan is {"faults": [...]}'),
        ('[{"kind": "drop"}, {"kind": "dance"}]', "fault 2: unknown kind 'dance'; known are drop, "),
        ('[{"kind": "drop", "at_ms": 5}]', "fault 1: drop has no 'at_ms'; it has how"),
        ('[{"kind": "zombie", "ms": 5}]', "fault 1: zombie has no 'ms'; it has none"),
        ('[{"kind": "drop", "at_seconds": -1}]', "fault 1: at_seconds and seconds are numbers from 0 on"),
        ('[{"kind": "drop", "at_seconds": true}]', "fault 1: at_seconds and seconds are numbers from 0 on"),
        ('[{"kind": []}]', "fault 1: unknown kind []"),
        ("[" * 100_000, "nested too deeply"),
        ('[{"kind": "drop", "how": ["rst"]}]', "fault 1: drop's how is one of rst, fin, 1000, 1001, not ['rst']"),
        ('[{"kind": "rest_text", "text": "deep"}]', "fault 1: rest_text's text is one of truncated, html, "),
        ('[{"kind": "erase", "count": "abc"}]', "fault 1: erase's count is a whole number from 1 to 86400, not 'abc'"),
        ('[{"kind": "erase", "count": 1e300}]', "fault 1: erase's count is a whole number from 1 to 86400, not 1e+300"),
        ('[{"kind": "ws_status", "status": 99}]', "fault 1: ws_status's status is a whole number from 200 to 599"),
        ('[{"kind": "shift", "ms": true}]', "fault 1: shift's ms is a whole number from -86400000 to 86400000"),
        ('[{"kind": "correct", "push": 1}]', "fault 1: correct's push is true or false, not 1"),
        ('[{"kind": "bad_price", "value": {}}]', "fault 1: bad_price's value is text, number or null, not {}"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_plan(path)
    assert line in str(caught.value)


def test_a_missing_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_plan(tmp_path / "absent.json")


def test_every_fault_of_a_random_plan_could_stand_in_a_file() -> None:
    for fault in (fault for seed in range(60) for fault in random_plan(seed, 60)):
        item = {"kind": fault.kind, "at_seconds": 0, "seconds": fault.lasts_ms / 1_000, **fault.options}
        assert read_fault(item, "here").options == fault.options


def test_a_random_plan_follows_from_its_seed_and_all_plans_together_hold_every_fault() -> None:
    assert random_plan(5, 60) == random_plan(5, 60)
    assert random_plan(5, 60) != random_plan(6, 60)
    assert {fault.kind for seed in range(60) for fault in random_plan(seed, 60)} == set(KINDS)


async def test_trades_make_up_their_candles_over_rest_and_socket(
    exchange: SimulatedExchange, session: aiohttp.ClientSession
) -> None:
    start = int(exchange.clock.now_ms()) // 1_000 * 1_000 - 60_000
    _, trades = await get(session, exchange, "/api/v3/aggTrades", symbol="ETHUSDT", startTime=start, limit=1_000)
    _, rows = await klines(session, exchange, startTime=start, limit=50)
    assert len({trade["a"] for trade in trades}) == len(trades)
    for row in rows:
        mine = [trade for trade in trades if row[0] <= trade["T"] < row[0] + 1_000]
        if len(trades) < 1_000 or row[0] + 1_000 < trades[-1]["T"]:
            assert len(mine) == row[8]
        if len(mine) == row[8] > 0:
            prices = [float(trade["p"]) for trade in mine]
            told = [float(text) for text in row[1:6]]
            assert [prices[0], max(prices), min(prices), prices[-1]] == told[:4]
            assert sum(float(trade["q"]) for trade in mine) == pytest.approx(told[4])
    async with session.ws_connect(f"ws://127.0.0.1:{exchange.port}/ws/ethusdt@trade") as socket:
        frames = [await socket.receive_json() for _ in range(30)]
    _, again = await get(session, exchange, "/api/v3/aggTrades", symbol="ETHUSDT", startTime=frames[0]["T"])
    told_again = {trade["a"]: (trade["p"], trade["q"], trade["T"]) for trade in again}
    assert all(told_again[frame["t"]] == (frame["p"], frame["q"], frame["T"]) for frame in frames)
