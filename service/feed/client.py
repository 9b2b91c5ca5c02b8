"""ExchangeClient: one ccxt.pro instance, with the closed flag given back and bad frames survived."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import ccxt.pro as ccxt_pro

from service.feed.timing import FeedTiming
from service.ports import ConfigurationError

OnRow = Callable[[object, bool], None]
_KEEP_ALIVE_MS = 5_000


class ExchangeClient:
    """Asks one exchange about one symbol.

    Every row that the socket brings is given to ``on_row(row, closed)`` as it arrives; rows are fresh lists, never
    changed afterwards. ``on_malformed`` is told of frames that make no sense. Methods let ccxt's and aiohttp's errors
    through.
    """

    def __init__(
        self, exchange: str, config: dict[str, Any], timing: FeedTiming, on_row: OnRow, on_malformed: Callable[[], None]
    ) -> None:
        base = _exchange_class(exchange)
        self.flagged = issubclass(base, ccxt_pro.binance)
        self._on_row = on_row
        self._timing = timing
        defaults: dict[str, Any] = {
            "timeout": int(timing.request_seconds * 1_000),
            "streaming": {
                "keepAlive": _KEEP_ALIVE_MS,
                "connectionTimeout": max(1_000, int(timing.request_seconds * 1_000)),
            },
        }
        if self.flagged:
            defaults["options"] = {"fetchMarkets": {"types": ["spot"]}}
        self.api: Any = _listening(base, on_row, on_malformed)(base.deep_extend(defaults, config))

    # --- REST ---------------------------------------------------------------------------------------------------------

    async def load_markets(self) -> None:
        await self.api.load_markets()

    async def time_ms(self) -> int | None:
        """Return the exchange's clock, None where it does not show one."""
        return await self.api.fetch_time() if self.api.has.get("fetchTime") else None

    async def candles(self, symbol: str, timeframe: str, since: int | None, limit: int) -> Any:
        """Return rows from ``since`` on, ascending, the open candle last; nothing about them is checked."""
        return await self.api.fetch_ohlcv(symbol, timeframe, since, limit)

    def row_limit(self, symbol: str) -> int:
        """Return how many candles one REST answer can hold."""
        known = self.api.feature_value(symbol, "fetchOHLCV", "limit", None)
        return int(known) if known else 500

    @property
    def answer_headers(self) -> dict[str, str]:
        return self.api.last_response_headers or {}

    # --- WebSocket ----------------------------------------------------------------------------------------------------

    async def watch(self, symbol: str, timeframe: str) -> None:
        """Wait for the next frame, dialling and subscribing where needed."""
        self.api.wanted = (self.api.market_id(symbol), timeframe)
        rows = await self.api.watch_ohlcv(symbol, timeframe)
        if not self.flagged:
            for row in rows:
                self._on_row(list(row), False)

    @property
    def connected(self) -> bool:
        return any(not client.closed() for client in self.api.clients.values())

    async def drop_sockets(self, keep: set[str] | None = None) -> None:
        """Close every socket whose URL is not in ``keep``; the next ``watch`` dials again."""
        for url in set(self.api.clients) - (keep or set()):
            socket = self.api.clients.pop(url)
            # A marked socket's late close cannot reject or remove its successor.
            socket.error = socket.error or ConnectionError("dropped")
            # Cancelled by the timeout, aiohttp cuts the transport: a dead peer never answers the close frame.
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(socket.close(), self._timing.close_socket_seconds)
        # ccxt's own dial backoff doubles up to 30 s, longer than an outage of ours may last; the feed has its own.
        self.api.ws_dial_backoff = {}

    def next_socket(self) -> set[str]:
        """Make the next ``watch`` dial beside the sockets there are; returns the URLs of those."""
        self.api.options.get("streamBySubscriptionsHash", {}).pop("multipleOHLCV", None)
        return set(self.api.clients)

    async def close(self) -> None:
        await self.drop_sockets()
        await self.api.close()


def _exchange_class(exchange: str) -> Any:
    if exchange not in ccxt_pro.exchanges:
        raise ConfigurationError(
            f"unknown exchange {exchange!r}; ccxt knows {len(ccxt_pro.exchanges)} with a live feed"
        )
    return getattr(ccxt_pro, exchange)


def _listening(base: Any, on_row: OnRow, on_malformed: Callable[[], None]) -> Any:
    """Subclass ccxt's exchange so that it tells of each candle frame, closed flag included (ccxt drops it)."""

    class Listening(base):  # type: ignore[misc]
        wanted: tuple[str, str] = ("", "")

        def client(self, url: str) -> Any:
            socket = super().client(url)
            if "handle_message" not in vars(socket):
                socket.handle_message = _guarded(socket.handle_message, on_malformed)
            return socket

        def handle_ohlcv(self, client: Any, message: Any) -> Any:
            if issubclass(base, ccxt_pro.binance):
                k = message["k"]
                if (k["s"], k["i"]) != self.wanted:
                    return None
                row = [k.get("t"), k.get("o"), k.get("h"), k.get("l"), k.get("c"), k.get("v")]
                on_row(row, k.get("x") is True)
            return super().handle_ohlcv(client, message)

    Listening.__name__ = base.__name__
    return Listening


def _guarded(handle: Callable[[Any], None], on_malformed: Callable[[], None]) -> Callable[[Any], None]:
    """Keep a frame that ccxt cannot read from ending its receive loop, which would go unnoticed for minutes."""

    def handle_message(message: Any) -> None:
        try:
            handle(message)
        except Exception:  # any class at all: what ccxt's parsers raise on garbage is not specified
            on_malformed()

    return handle_message
