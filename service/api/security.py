"""Keys, single-use tickets, and whether a request came from a page of ours."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from starlette.types import Scope

TICKET_SECONDS = 30
MAX_TICKETS = 10_000
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(:[0-9]+)?")


class KeyRing:
    """The keys that open the API, kept as digests; comparison takes the same time whatever is given."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, scope: Scope) -> str | None:
        """Return a name, fit for counting, of the key this request brought, or None when it brought no right one."""
        found = None
        for candidate in presented_keys(scope):
            digest = _digest(candidate)
            for known in self._digests:
                if hmac.compare_digest(digest, known):
                    found = digest.hex()[:16]
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def presented_keys(scope: Scope) -> list[bytes]:
    """List the keys in `Authorization: Bearer` and `X-API-Key`, as bytes."""
    keys = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(value[7:].strip())
    return keys[:4]


class Tickets:
    """Single-use tickets for the WebSocket, valid for 30 seconds of ``clock`` (monotonic seconds)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Bounded: the oldest ticket makes room, its owner has to ask again.
        self._expiries: OrderedDict[bytes, float] = OrderedDict()

    def issue(self) -> str:
        """Make a ticket."""
        now = self._clock()
        while self._expiries and (len(self._expiries) >= MAX_TICKETS or next(iter(self._expiries.values())) <= now):
            self._expiries.popitem(last=False)
        ticket = secrets.token_urlsafe(32)
        self._expiries[_digest(ticket.encode())] = now + TICKET_SECONDS
        return ticket

    def redeem(self, ticket: str) -> bool:
        """Use a ticket up; tell whether it was one of ours and still valid."""
        # Looked up by digest: how long that takes tells nothing about the tickets there are.
        expiry = self._expiries.pop(_digest(ticket.encode()), None)
        return expiry is not None and self._clock() < expiry


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first value of a header."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def host_allowed(scope: Scope, allowed: Sequence[str]) -> bool:
    """Tell whether the Host header names one of ours (any when none are configured): stops DNS rebinding."""
    if not allowed:
        return True
    match = _HOST.fullmatch(header(scope, b"host") or "")
    return match is not None and match[1].strip("[]").lower() in allowed


def same_origin(scope: Scope, origin: str) -> bool:
    """Tell whether ``origin`` is the host this request was sent to."""
    host = header(scope, b"host")
    return host is not None and origin.partition("://")[2].lower() == host.lower()


def origin_allowed(scope: Scope, allowed: Sequence[str]) -> bool:
    """Tell whether the request came from our own page, an allowed origin, or no browser page at all."""
    origin = header(scope, b"origin")
    return origin is None or origin in allowed or "*" in allowed or same_origin(scope, origin)


def cross_site(scope: Scope, allowed: Sequence[str]) -> bool:
    """Tell whether a browser sent this from another site's page: by Sec-Fetch-Site, else by Origin against Host."""
    if origin_allowed(scope, allowed):
        return False
    return header(scope, b"sec-fetch-site") not in ("same-origin", "none")
