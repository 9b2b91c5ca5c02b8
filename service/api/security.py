"""Keys, single-use tickets, and whose pages may ask for what."""

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
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
READING_POSTS = {"/predict", "/ws-ticket"}
"""What a page of an allowed origin may post to: they change nothing. All else is for the service's own page."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(:[0-9]+)?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


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
    return next(iter(headers(scope, name)), None)


def headers(scope: Scope, name: bytes) -> list[str]:
    """Return every value of a header."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def host_allowed(scope: Scope, allowed: Sequence[str]) -> bool:
    """Tell whether the Host header names one of ours (any when none are configured): stops DNS rebinding."""
    if not allowed:
        return True
    match = _HOST.fullmatch(header(scope, b"host") or "")
    return match is not None and match[1].strip("[]").lower() in allowed


def own_origin(scope: Scope, origin: str) -> bool:
    """Tell whether ``origin`` is a page of the host this request was sent to.

    https counts as well as http: a proxy that speaks TLS to the browser need not have told us.
    """
    scheme, _, host = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    own = (header(scope, b"host") or "").lower()
    return port is not None and own != "" and host.removesuffix(port) == own.removesuffix(port)


def may_ask(scope: Scope, allowed: Sequence[str]) -> bool:
    """Tell whether the page that a browser says sent this (no Origin: a program) may ask for it.

    Other sites' pages may send what a browser lets any page send, a read whose answer it keeps from them; only allowed
    ones may follow a WebSocket or post to READING_POSTS; none may do anything else.
    """
    is_socket = scope["type"] == "websocket"
    if not is_socket and scope["method"] in SAFE_METHODS:
        return True
    reads = is_socket or scope["path"] in READING_POSTS
    return all(
        own_origin(scope, origin) or (reads and (origin in allowed or "*" in allowed))
        for origin in headers(scope, b"origin")
    )
