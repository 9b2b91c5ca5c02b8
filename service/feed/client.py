"""ExchangeClient: one ccxt.pro instance, with the closed flag given back and bad frames survived."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import ccxt.pro as ccxt_pro

from service.feed.pace import Manners
from service.feed.patience import NoAnswer, first_answer
from service.feed.sockets import listening
from service.feed.timing import FeedTiming
from service.feed.trouble import Trouble, read_trouble
from service.ports import ConfigurationError

# They have a candle for every interval, traded or not; elsewhere a quiet interval has none.
DENSE_EXCHANGES = frozenset({"binance", "binanceus", "binanceusdm", "binancecoinm"})
OnRow = Callable[[object, bool], None]
T = TypeVar("T")
_ASK_TIMES = 3
_KEEP_ALIVE_MS = 5_000
_STREAM = "multipleOHLCV"


class CallFailed(Exception):
    """A call to the exchange failed, by expected trouble; ``trouble`` says how."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


class ExchangeClient:
    """Asks one exchange about one symbol. Methods raise CallFailed, and nothing else for expected trouble.

    Every row that the socket brings is given to ``on_row(row, closed)`` as it arrives; rows are fresh lists, never
    changed afterwards. ``on_malformed`` is told of frames that make no sense. ``flagged`` and ``dense`` as in
    AssemblerRules. ``late``: a REST question has gone without an answer for longer than usual.
    """

    built = False

    @property
    def streams(self) -> bool:
        """Whether there is a socket to watch; otherwise REST alone is asked."""
        return bool(self.api.has.get("watchOHLCV"))

    def __init__(
        self,
        exchange: str,
        symbol: str,
        timeframe: str,
        config: dict[str, Any],
        timing: FeedTiming,
        on_row: OnRow,
        on_malformed: Callable[[], None],
    ) -> None:
        base = _exchange_class(exchange)
        self.late = False
        self.dense = exchange in DENSE_EXCHANGES
        self.flagged = issubclass(base, ccxt_pro.binance)
        self._exchange = exchange
        self._symbol, self._timeframe = symbol, timeframe
        self._on_row = on_row
        self._on_malformed = on_malformed
        self._timing = timing
        self._bug: Exception | None = None
        self._stream_before: str | None = None
        # Late sockets being closed; each is out again within close_socket_seconds.
        self._closing: set[asyncio.Task[None]] = set()
        try:
            self.api: Any = listening(base, self)(base.deep_extend(self._defaults(), config))
        except Exception as error:  # ccxt's constructor meets whatever the user wrote
            raise ConfigurationError(f"ccxt does not take the given configuration: {error}") from error
        if not isinstance(self.api.timeout, (int, float)) or not self.api.timeout > 0:
            raise ConfigurationError("ccxt does not take the given configuration: timeout must be milliseconds")

    # --- REST ---------------------------------------------------------------------------------------------------------

    async def load_markets(self, manners: Manners) -> None:
        """Read the list of markets, or take it from another client that did."""
        async with manners.listing:
            if manners.listed is None:
                await self._read_markets()
                manners.listed = self.api
            else:
                self.api.set_markets_from_exchange(manners.listed)

    async def _read_markets(self) -> None:
        patience_ms, self.api.timeout = self.api.timeout, max(self.api.timeout, self._timing.connect_seconds * 1_000)
        try:
            # Thousands of markets are megabytes, which may take longer than any other answer.
            with self._telling_trouble():
                # Again from the start each time: ccxt keeps an answer that held no markets.
                await self.api.load_markets(True)
        finally:
            self.api.timeout = patience_ms
        if not self.api.markets:
            raise CallFailed(Trouble("the exchange lists no markets"))

    async def time_ms(self) -> int | None:
        """Return the exchange's clock, None where it does not show one."""
        if not self.api.has.get("fetchTime"):
            return None
        told = await self._ask(self.api.fetch_time, times=1)
        return told if type(told) is int else None

    async def candles(self, since: int | None, limit: int) -> list[list[Any]]:
        """Return rows from ``since`` on, ascending, the open candle last; nothing in them is checked."""
        return await self._ask(lambda: self._fetch_rows(since, limit))

    async def _fetch_rows(self, since: int | None, limit: int) -> list[list[Any]]:
        return [list(row) for row in await self.api.fetch_ohlcv(self._symbol, self._timeframe, since, limit)]

    async def _ask(self, call: Callable[[], Coroutine[Any, Any, T]], times: int | None = None) -> T:
        """Ask REST, waiting ``times`` the usual (default: as long as ccxt's ``timeout``); raises CallFailed."""

        async def asking() -> T:
            with self._telling_trouble():
                return await call()

        every_seconds = self._timing.request_seconds
        times = times or max(1, math.ceil(self.api.timeout / 1_000 / every_seconds))
        try:
            return await first_answer(asking, every_seconds, times, self._note_late)
        except NoAnswer as error:
            raise CallFailed(Trouble(str(error))) from error
        finally:
            self.late = False

    def _note_late(self) -> None:
        self.late = True
        # ccxt's throttle reads the wall clock: set back, that would let nothing pass for as long.
        self.api.init_throttler()

    def row_limit(self) -> int:
        """Return how many candles one REST answer can hold."""
        known = self.api.feature_value(self._symbol, "fetchOHLCV", "limit", None)
        return int(known) if known else 500

    # --- WebSocket ----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Wait for the next frame, dialling and subscribing where needed."""
        with self._telling_trouble(of_socket=True):
            rows = await self.api.watch_ohlcv(self._symbol, self._timeframe)
        if self._bug is not None:
            raise self._bug
        if not self.flagged:
            # Upbit's is one row, others' are several.
            for row in rows if isinstance(rows[0], list) else [rows]:
                self._on_row(list(row), False)

    @property
    def connected(self) -> bool:
        return any(not socket.closed() for socket in self.api.clients.values())

    async def drop_sockets(self, keep: set[str] | None = None) -> None:
        """Close every socket whose URL is not in ``keep``; the next ``watch`` dials again."""
        for url in set(self.api.clients) - (keep or set()):
            socket = self.api.clients.pop(url)
            # A marked socket's late close cannot reject or remove its successor.
            socket.error = socket.error or ConnectionError("dropped")
            await self._close_socket(socket)
        # ccxt's own dial backoff doubles up to 30 s, longer than an outage of ours may last; the feed has its own.
        self.api.ws_dial_backoff = {}

    async def _close_socket(self, socket: Any) -> None:
        # Cancelled by the timeout, aiohttp cuts the transport: a dead peer never answers the close frame.
        with contextlib.suppress(TimeoutError, ConnectionError):
            # Not wait_for: Python 3.11's swallows a cancellation that comes just as the close is done.
            async with asyncio.timeout(self._timing.close_socket_seconds):
                await socket.close()

    def next_socket(self) -> set[str]:
        """Make the next ``watch`` dial beside the sockets there are; returns the URLs of those."""
        self._stream_before = self._streams().pop(_STREAM, None)
        return self.sockets

    async def back_to(self, old: set[str]) -> None:
        """Close the socket that was dialled since ``next_socket``, which returned ``old``, and watch those again."""
        if self._stream_before is not None:
            self._streams()[_STREAM] = self._stream_before
        await self.drop_sockets(keep=old)

    def _streams(self) -> dict[str, str]:
        """Which of Binance's streams, each a socket of its own, ccxt subscribes on; empty elsewhere."""
        streams: dict[str, str] = self.api.options.get("streamBySubscriptionsHash", {})
        return streams

    @property
    def sockets(self) -> set[str]:
        """The URLs of the sockets there are."""
        return set(self.api.clients)

    async def close(self) -> None:
        await self.drop_sockets()
        await self.api.close()
        await asyncio.gather(*self._closing)

    # --- what ccxt's sockets tell -------------------------------------------------------------------------------------

    def take_kline(self, message: Any) -> None:
        """Read Binance's frame, whose closed flag ccxt drops."""
        k = message["k"]
        if k["s"] == self.api.market_id(self._symbol) and k["i"] == self._timeframe:
            row = [k.get("t"), k.get("o"), k.get("h"), k.get("l"), k.get("c"), k.get("v")]
            try:
                self._on_row(row, k.get("x") is True)
            except Exception as bug:  # kept for watch() to raise: here it would only end ccxt's receive loop, silently
                self._bug = bug

    def refuse_late(self, socket: Any) -> bool:
        """Close a socket whose dial was under way when it was dropped; returns whether it was such a one."""
        if self.api.clients.get(socket.url) is socket:
            return False
        closing = asyncio.create_task(self._close_socket(socket), name="close a late socket")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return True

    def malformed(self) -> None:
        """Take note of a frame that ccxt cannot read."""
        self._on_malformed()

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _defaults(self) -> dict[str, Any]:
        request_ms = int(self._timing.request_seconds * 1_000)
        defaults: dict[str, Any] = {
            "timeout": request_ms * _ASK_TIMES,
            "streaming": {"keepAlive": _KEEP_ALIVE_MS, "connectionTimeout": max(1_000, request_ms)},
        }
        if self.flagged:
            # With an account's keys ccxt would ask for its currencies and margins, too; market data needs neither.
            defaults["options"] = {"fetchMarkets": {"types": ["spot"]}, "fetchCurrencies": False, "fetchMargins": False}
        if self._exchange == "okx":
            # It has 1 s candles; ccxt passes them on, but only keeps them where the timeframe is listed.
            defaults["timeframes"] = {"1s": "1s"}
        return defaults

    @contextlib.contextmanager
    def _telling_trouble(self, *, of_socket: bool = False) -> Iterator[None]:
        """Turn what ccxt lets through into CallFailed: its own classes, aiohttp's, and its parsers' TypeErrors."""
        try:
            yield
        except ccxt_pro.InvalidProxySettings as error:
            raise ConfigurationError(f"ccxt does not take the given configuration: {error}") from error
        except Exception as error:  # only ccxt's code runs inside
            headers = _handshake_headers(error) if of_socket else self.api.last_response_headers
            raise CallFailed(read_trouble(error, headers)) from error


def _handshake_headers(error: Exception) -> Mapping[str, str] | None:
    """Return the headers of a refused handshake: ccxt wraps aiohttp's error of it."""
    return getattr(error.args[0], "headers", None) if error.args else None


def _exchange_class(exchange: str) -> Any:
    if exchange not in ccxt_pro.exchanges:
        raise ConfigurationError(
            f"unknown exchange {exchange!r}; ccxt knows {len(ccxt_pro.exchanges)} with a live feed"
        )
    return getattr(ccxt_pro, exchange)
