"""How many requests and sockets one caller may have, and how many may wait for the learner."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from limits import RateLimitItemPerMinute
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter
from starlette.types import Scope

from service.api.problem import Problem

MAX_CALLERS = 20_000
MAX_HEADER_BYTES = 64 * 1024
"""What a request may bring before its body: path, query, names and values of its headers."""


class TooManySockets(Exception):
    """The cap on open WebSockets, of all or of this caller, is reached."""


class BoundedMemory(Storage):
    """Counters for the `limits` library in bounded memory (its own in-memory storage starts a thread per request)."""

    STORAGE_SCHEME = None

    def __init__(self) -> None:
        super().__init__()
        # Bounded: the caller not counted for the longest time is forgotten.
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        count, ends = self._current(key)
        if count == 0:
            ends = time.time() + expiry
        self._counts[key] = count + amount, ends
        self._counts.move_to_end(key)
        if len(self._counts) > MAX_CALLERS:
            self._counts.popitem(last=False)
        return count + amount

    def get(self, key: str) -> int:
        return self._current(key)[0]

    def get_expiry(self, key: str) -> float:
        return self._current(key)[1]

    def check(self) -> bool:
        return True

    def reset(self) -> int | None:
        count = len(self._counts)
        self._counts.clear()
        return count

    def clear(self, key: str) -> None:
        self._counts.pop(key, None)

    def _current(self, key: str) -> tuple[int, float]:
        now = time.time()
        count, ends = self._counts.get(key, (0, now))
        return (count, ends) if ends > now else (0, now)


class RequestLimit:
    """At most ``per_minute`` requests of one caller in any clock minute of its own."""

    def __init__(self, per_minute: int) -> None:
        self._limit = RateLimitItemPerMinute(per_minute)
        self._limiter = FixedWindowRateLimiter(BoundedMemory())

    def retry_after(self, caller: str) -> int | None:
        """Count a request; return None when it may go on, else the seconds until the next may."""
        if self._limiter.hit(self._limit, caller):
            return None
        resets = self._limiter.get_window_stats(self._limit, caller).reset_time
        return max(1, round(resets - time.time() + 0.5))


class SocketLimit:
    """At most ``total`` open WebSockets, and ``per_caller`` of one caller."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._open: Counter[str] = Counter()
        self.open = 0
        """How many are open now."""

    @contextmanager
    def hold(self, caller: str) -> Iterator[None]:
        """Count one more while inside, or raise TooManySockets."""
        if self.open >= self._total or self._open[caller] >= self._per_caller:
            raise TooManySockets
        self.open += 1
        self._open[caller] += 1
        try:
            yield
        finally:
            self.open -= 1
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


class Busy(Exception):
    """As many are in line as may be."""


class Places:
    """At most ``at_once`` inside and ``in_line`` in all: who comes then is told to come again."""

    def __init__(self, at_once: int, in_line: int) -> None:
        self._in_line = in_line
        self._places = asyncio.Semaphore(at_once)
        self.taken = 0
        """How many are inside or waiting to be."""

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a place and hold it while inside, or raise Busy at once."""
        if self.taken >= self._in_line:
            raise Busy
        self.taken += 1
        try:
            async with self._places:
                yield
        finally:
            self.taken -= 1


def header_bytes(scope: Scope) -> int:
    """Count what a request brought before its body."""
    line = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def headers_too_large() -> Problem:
    """The answer to more than MAX_HEADER_BYTES before the body."""
    return Problem(431, "Headers too large", f"Path and headers are larger than {MAX_HEADER_BYTES} bytes.")


def address(scope: Scope) -> str:
    """Return what stands for the caller's address: IPv4 whole, IPv6 by its /64, which one household has."""
    client = scope.get("client")
    if not client:
        return "unknown"
    try:
        parsed = ipaddress.ip_address(client[0])
    except ValueError:
        return "unknown"
    if parsed.version == 4:
        return str(parsed)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
