"""One ccxt instance, its flaws mended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import ccxt
import pytest

from service.feed.client import CallFailed, ExchangeClient
from service.feed.clock import ExchangeClock
from service.feed.measure import set_clock
from service.feed.pace import Manners
from service.feed.timing import FeedTiming
from service.ports import ConfigurationError
from service.simulator.faults import Fault
from service.simulator.server import SimulatedExchange
from service.simulator.session import Session
from tests.support.eventually import eventually

FOR_EVER = 10**9


@pytest.fixture
async def exchange() -> AsyncIterator[SimulatedExchange]:
    async with SimulatedExchange(speed=20) as exchange:
        yield exchange


class Listener:
    """Keeps the rows a client tells of; ``bug`` makes it fail on the first one."""

    def __init__(self, bug: Exception | None = None) -> None:
        self.rows: list[tuple[Any, bool]] = []
        self.malformed = 0
        self._bug = bug

    def row(self, row: object, closed: bool) -> None:
        if self._bug is not None:
            raise self._bug
        self.rows.append((row, closed))

    def senseless(self) -> None:
        self.malformed += 1


def make_client(exchange: SimulatedExchange, listener: Listener, request_seconds: float = 2) -> ExchangeClient:
    timing = FeedTiming(request_seconds=request_seconds)
    config = exchange.ccxt_config()
    return ExchangeClient("binance", "ETH/USDT", "1s", config, timing, listener.row, listener.senseless)


async def watch_for_ever(client: ExchangeClient) -> None:
    while True:
        await client.watch()


async def test_every_frame_is_told_with_its_closed_flag(exchange: SimulatedExchange) -> None:
    listener = Listener()
    client = make_client(exchange, listener)
    while len(listener.rows) < 12:
        await client.watch()
    await client.close()
    times = [row[0] for row, closed in listener.rows if closed]
    assert times == sorted(set(times))
    assert len(times) >= 5
    for row, closed in listener.rows:
        candle = exchange.truth.candle("ETHUSDT", row[0], 1_000)
        assert candle is not None
        assert not closed or float(row[4]) == candle.close


async def test_frames_of_other_symbols_are_not_told(exchange: SimulatedExchange) -> None:
    listener = Listener()
    client = make_client(exchange, listener)
    message = {"e": "kline", "k": {"s": "BTCUSDT", "i": "1s", "t": 1, "x": True}}
    await client.load_markets(Manners(FeedTiming()))
    client.take_kline(message)
    client.take_kline({"e": "kline", "k": {**message["k"], "s": "ETHUSDT", "i": "1m"}})  # type: ignore[dict-item]
    await client.close()
    assert listener.rows == []


async def test_a_bug_in_taking_a_row_is_not_swallowed_by_ccxt(exchange: SimulatedExchange) -> None:
    client = make_client(exchange, Listener(bug=ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError, match="ours"):
        await watch_for_ever(client)
    await client.close()


async def test_a_refused_handshake_tells_how_long_to_wait(exchange: SimulatedExchange) -> None:
    exchange.book.add(Fault("ws_status", 0, FOR_EVER, {"status": 429, "retry_after": 7}))
    client = make_client(exchange, Listener())
    with pytest.raises(CallFailed) as caught:
        await client.watch()
    await client.drop_sockets()
    await client.close()
    assert caught.value.trouble.limited
    assert caught.value.trouble.retry_after_seconds == pytest.approx(7, abs=1.5)


class ClosingSocket:
    """A socket whose closer is cancelled in the very moment in which it is closed."""

    url = "ws://one"
    error: Exception | None = None
    closer: asyncio.Task[None]

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closer.cancel()


async def test_a_cancellation_that_comes_just_as_a_socket_is_closed_is_not_swallowed(
    exchange: SimulatedExchange,
) -> None:
    client = make_client(exchange, Listener())
    socket = ClosingSocket()
    client.api.clients = {socket.url: socket}
    socket.closer = asyncio.create_task(client.drop_sockets())
    with pytest.raises(asyncio.CancelledError):
        await socket.closer
    await client.close()


class Sessions(set[Session]):
    """Counts the sessions that there ever were."""

    opened = 0

    def add(self, session: Session) -> None:
        self.opened += 1
        super().add(session)


async def test_a_dial_under_way_when_the_sockets_are_dropped_is_closed_once_it_connects(
    exchange: SimulatedExchange,
) -> None:
    sessions = exchange.sockets.sessions = Sessions()
    client = make_client(exchange, Listener())
    await client.load_markets(Manners(FeedTiming()))
    exchange.book.add(Fault("ws_hang", 0, int(exchange.since_start()) + 8_000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.watch()
    await client.drop_sockets()
    await eventually(lambda: sessions.opened == 1, 5)
    await eventually(lambda: not sessions, 5)
    await client.watch()
    assert (sessions.opened, len(sessions)) == (2, 1)
    await client.close()


async def test_a_refused_question_tells_how_long_to_wait(exchange: SimulatedExchange) -> None:
    client = make_client(exchange, Listener())
    await client.load_markets(Manners(FeedTiming()))
    exchange.book.add(Fault("rest_status", 0, FOR_EVER, {"status": 418, "retry_after": 9}))
    with pytest.raises(CallFailed) as caught:
        await client.candles(None, 2)
    await client.close()
    assert caught.value.trouble.retry_after_seconds == 9


async def test_a_slow_question_that_was_then_refused_is_not_late_any_more(exchange: SimulatedExchange) -> None:
    client = make_client(exchange, Listener(), request_seconds=0.01)

    async def refuse_late(*_: object) -> None:
        if not client.late:
            await asyncio.Event().wait()
        raise ccxt.RateLimitExceeded("HTTP 429")

    client.api.fetch_ohlcv = refuse_late
    with pytest.raises(CallFailed) as failed:
        await client.candles(None, 5)
    assert failed.value.trouble.limited
    assert not client.late
    await client.close()


async def test_a_patient_ccxt_timeout_is_waited_for(exchange: SimulatedExchange) -> None:
    client = make_client(exchange, Listener(), request_seconds=0.01)
    client.api.timeout = 100
    waits = 0

    async def answer_late(*_: object) -> list[list[float]]:
        nonlocal waits
        waits += 1
        await asyncio.sleep(0.06 if waits == 1 else 10)
        return []

    client.api.fetch_ohlcv = answer_late
    assert await client.candles(None, 5) == []
    assert waits == 3
    await client.close()


async def test_without_the_exchange_s_clock_its_candles_and_ours_tell_the_time(exchange: SimulatedExchange) -> None:
    client = make_client(exchange, Listener())
    await client.load_markets(Manners(FeedTiming()))

    async def fail() -> int:
        raise RuntimeError("404")

    client.api.fetch_time = fail
    clock = ExchangeClock(20)
    newest = await set_clock(clock, client, 1_000)
    await client.close()
    assert newest is not None
    assert clock.now_ms() >= newest


@pytest.mark.parametrize("timeout", ["abc", 0, -1, None, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: object) -> None:
    with pytest.raises(ConfigurationError, match="milliseconds"):
        ExchangeClient("binance", "ETH/USDT", "1s", {"timeout": timeout}, FeedTiming(), print, print)


async def test_proxies_that_contradict_each_other_are_a_wrong_setting_and_not_tried_for_ever() -> None:
    proxies = {"httpProxy": "http://127.0.0.1:1", "httpsProxy": "http://127.0.0.1:1"}
    client = ExchangeClient("binance", "ETH/USDT", "1s", proxies, FeedTiming(), print, print)
    with pytest.raises(ConfigurationError, match="httpProxy"):
        await client.load_markets(Manners(FeedTiming()))
    await client.close()


def test_a_configuration_that_ccxt_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ccxt does not take the given configuration"):
        ExchangeClient("binance", "ETH/USDT", "1s", {"options": 5}, FeedTiming(), Listener().row, Listener().senseless)


async def test_a_list_without_markets_is_trouble_that_may_pass(
    exchange: SimulatedExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, manners = make_client(exchange, Listener()), Manners(FeedTiming())
    with monkeypatch.context() as changed:
        changed.setattr(exchange.truth, "symbols", {})
        with pytest.raises(CallFailed, match="lists no markets"):
            await client.load_markets(manners)
    await client.load_markets(manners)
    assert "ETH/USDT" in client.api.markets
    await client.close()


async def test_with_an_account_s_keys_market_data_is_still_all_that_is_asked_for(exchange: SimulatedExchange) -> None:
    config = exchange.ccxt_config() | {"apiKey": "key", "secret": "secret"}
    client = ExchangeClient("binance", "ETH/USDT", "1s", config, FeedTiming(), print, print)
    await client.load_markets(Manners(FeedTiming()))
    assert "ETH/USDT" in client.api.markets
    await client.close()


async def test_clients_of_one_exchange_read_its_markets_once(exchange: SimulatedExchange) -> None:
    manners = Manners(FeedTiming())
    clients = [make_client(exchange, Listener()) for _ in range(3)]
    await asyncio.gather(*(client.load_markets(manners) for client in clients))
    assert exchange.requests == 1
    for client in clients:
        assert len(await client.candles(None, 3)) == 3
        await client.close()


async def test_while_the_wall_s_clock_was_set_back_questions_pass_all_the_same(
    exchange: SimulatedExchange,
) -> None:
    timing = FeedTiming(request_seconds=0.4)
    listener = Listener()
    client = ExchangeClient(
        "binance", "ETH/USDT", "1s", exchange.ccxt_config(), timing, listener.row, listener.senseless
    )
    await client.load_markets(Manners(timing))
    client.api.throttler.config["tokens"] = -1_000  # as a setting back by an hour leaves it
    assert len(await client.candles(None, 3)) == 3
    await client.close()


async def test_the_clock_is_set_by_the_exchange_s_though_ours_was_set_an_hour_ahead(
    exchange: SimulatedExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(exchange, Listener())
    await client.load_markets(Manners(FeedTiming()))
    clock = ExchangeClock(20)
    await set_clock(clock, client, 1_000)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3_600)
    for has_time in (True, False):
        monkeypatch.setitem(client.api.has, "fetchTime", has_time)
        await set_clock(clock, client, 1_000)
        assert abs(clock.now_ms() - exchange.clock.now_ms()) < 10_000
    await client.close()
