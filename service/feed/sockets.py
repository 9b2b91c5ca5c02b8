"""ccxt's exchange and sockets, made to tell what they get, and to survive what they cannot read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Listener(Protocol):
    """Who is told. ``flagged``: of Binance's candle frames, with the closed flag that ccxt drops."""

    flagged: bool

    def take_kline(self, message: Any) -> None: ...
    def refuse_late(self, socket: Any) -> bool: ...
    def malformed(self) -> None: ...


def listening(base: Any, listener: Listener) -> Any:
    """Subclass ccxt's exchange so that ``listener`` is told of each candle frame and each socket is guarded."""

    class Listening(base):  # type: ignore[misc]
        def client(self, url: str) -> Any:
            socket = super().client(url)
            if "handle_message" not in vars(socket):
                socket.handle_message = guarded_handler(socket, listener.malformed)
                socket.receive_loop = guarded_loop(socket)
            return socket

        def on_connected(self, client: Any, message: Any = None) -> None:
            if not listener.refuse_late(client):
                super().on_connected(client, message)

        def handle_ohlcv(self, client: Any, message: Any) -> Any:
            if listener.flagged:
                listener.take_kline(message)
            return super().handle_ohlcv(client, message)

    Listening.__name__ = base.__name__
    return Listening


def guarded_handler(socket: Any, on_malformed: Callable[[], None]) -> Callable[[Any], None]:
    """Keep a frame that ccxt cannot read from ending its receive loop, which would go unnoticed for minutes."""
    handle = socket.handle_message

    def handle_message(message: Any) -> None:
        try:
            handle(message)
        except Exception:  # any class at all: what ccxt's parsers raise on garbage is not specified
            on_malformed()
        # Whatever it was, the peer lives; ccxt would go by pongs alone, and hang up on one that sends none.
        socket.lastPong = socket.last_message_at

    return handle_message


def guarded_loop(socket: Any) -> Callable[[], None]:
    """Make an error that ends ccxt's receive loop an error of the socket: whoever watches is told, and dials again."""
    receive = socket.receive_loop

    def receive_loop() -> None:
        try:
            receive()
        except Exception as error:  # it reaches into aiohttp's private parts, where anything may be missing
            socket.on_error(ConnectionError(f"the receive loop ended: {error!r}"))

    return receive_loop
