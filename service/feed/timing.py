"""FeedTiming: how patient the feed is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class FeedTiming:
    """Waits and limits of one feed.

    Names ending in ``_ms`` are milliseconds of the exchange's time; ``speed`` says how many of them pass in one real
    millisecond (1, except on a simulated exchange that runs faster). Names ending in ``_seconds`` are real seconds.
    """

    speed: float = 1.0
    connect_seconds: float = 7.0  # for everything that entering the feed does; feed=auto falls back after it
    request_seconds: float = 4.0  # one REST call, one WebSocket handshake; a dead link is noticed after this
    close_seconds: float = 3.0  # for the client; the feed's tasks take up to two more
    close_socket_seconds: float = 0.5  # the peer may be dead, and never answer the close frame
    final_grace_ms: int = 300  # a final frame may come this long after the next candle's first before REST is asked
    poll_after_ms: int = 3_000  # no new candle for this long after it was due: ask REST
    follow_after_ms: int = 500  # the same, while the socket is known to be behind
    drop_after_ms: int = 10_000  # ... and the socket is behind what REST has: dial again
    quiet_drop_ms: int = 60_000  # ... and REST has nothing newer either: dial again all the same, now and then
    stale_after_ms: int = 4_000  # the feed is called stale this long after the next candle should have closed
    backfill_after_ms: int = 10_000  # a candle fetched by REST this long after its close counts as backfill
    future_ms: int = 5_000  # a candle may open this far ahead of the exchange's clock
    rest_grace_ms: int = 3_000  # the newest row of an answer is closed only this long after its end
    reread_ms: int = 5_000
    reread_candles: int = 90
    deep_reread_ms: int = 60_000
    retry_ms: int = 1_500  # between two questions about the same missing candle
    gap_tries: int = 4  # so many answers without a candle, though with later ones: the exchange does not have it
    hold_ms: int = 300_000  # a hole REST cannot be asked about holds up later candles for this long at most
    clock_every_ms: int = 60_000
    backoff_seconds: float = 0.25
    backoff_limit_seconds: float = 5.0
    refused_seconds: float = 10.0  # after HTTP 451 or 403: the exchange does not want us, asking faster is rude
    limited_seconds: float = 5.0  # after HTTP 429 or 418 that does not say how long to wait
    dials_per_window: int = 30  # aiohttp dials once more by itself where a handshake is cut: 60 at the exchange
    dial_window_seconds: float = 300.0
    renew_seconds: float = 23 * 3_600.0  # the exchange cuts a socket after 24 h; a new one is opened before that
    renew_again_seconds: float = 600.0  # after a new one that did not work; the old one stays

    def patient(self) -> Self:
        """Return the timing where a quiet interval has no candle: it is known to be one only seconds later."""
        return replace(self, stale_after_ms=2 * self.stale_after_ms)

    @classmethod
    def accelerated(cls, speed: float) -> Self:
        """Return the timing of the same feed at an exchange whose clock runs ``speed`` times as fast."""
        usual = cls()
        return cls(
            speed=speed,
            request_seconds=max(0.4, usual.request_seconds / speed),
            close_socket_seconds=max(0.05, usual.close_socket_seconds / speed),
            backoff_seconds=usual.backoff_seconds / speed,
            backoff_limit_seconds=usual.backoff_limit_seconds / speed,
            limited_seconds=usual.limited_seconds / speed,
            refused_seconds=usual.refused_seconds / speed,
            dial_window_seconds=usual.dial_window_seconds / speed,
            renew_seconds=usual.renew_seconds / speed,
            renew_again_seconds=usual.renew_again_seconds / speed,
        )
