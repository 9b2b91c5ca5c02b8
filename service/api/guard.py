"""Guard: what every request passes before any route sees it. Refuses by default, so a new route is protected."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.body import too_large
from service.api.deps import ApiOptions
from service.api.limits import MAX_HEADER_BYTES, RequestLimit, address, header_bytes, headers_too_large
from service.api.problem import Problem, answer
from service.api.security import KeyRing, header, headers, host_allowed, may_ask, presented_keys

OPEN_PATHS = {"/", "/health/live", "/docs", "/docs/start.js", "/openapi.json", "/favicon.ico"}
OPEN_PREFIX = "/static/"
TICKET_PATHS = {"/ws"}
"""WebSockets that wait for a ticket themselves when the handshake brings no key."""


class Guard:
    """Pure ASGI middleware: sizes, host, rate, key and origin; for HTTP and WebSocket alike.

    Leaves ``livewick.caller`` (what is counted: a key or an address) and ``livewick.authenticated`` in the scope.
    """

    def __init__(self, app: ASGIApp, options: ApiOptions) -> None:
        self._app = app
        self._options = options
        self._keys = KeyRing(options.api_keys)
        self._limit = RequestLimit(options.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except Problem as problem:
            await answer(problem, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raise the Problem that keeps this request out."""
        key = self._keys.find(scope) if self._keys else None
        scope["livewick.caller"] = caller = key or address(scope)
        scope["livewick.authenticated"] = key is not None or not self._keys
        if header_bytes(scope) > MAX_HEADER_BYTES:
            raise headers_too_large()
        if len(headers(scope, b"host")) > 1:
            raise Problem(400, "Malformed request", "There is more than one Host header.")
        if not host_allowed(scope, self._options.allowed_hosts):
            raise Problem(400, "Unknown host", "The Host header is not one this service answers to.")
        retry_after = self._limit.retry_after(caller)
        if retry_after is not None:
            raise Problem(429, "Too many requests", "Come again after Retry-After seconds.", retry_after=retry_after)
        if not (scope["livewick.authenticated"] or _open(scope)):
            raise _unauthorized()
        if not may_ask(scope, self._options.allowed_origins):
            raise Problem(403, "Cross-site request", "A page of another site may not do this.")
        if scope["type"] == "http":
            self._check_length(scope)

    def _check_length(self, scope: Scope) -> None:
        length = header(scope, b"content-length")
        if length is not None and length.isdecimal() and int(length[:20]) > self._options.body_bytes:
            raise too_large(self._options.body_bytes)


def _open(scope: Scope) -> bool:
    """Tell whether this path needs no key; a wrong key in a WebSocket's handshake is refused there and then."""
    path = scope["path"]
    if scope["type"] == "websocket":
        return path in TICKET_PATHS and not presented_keys(scope)
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _unauthorized() -> Problem:
    detail = "A key is needed: Authorization: Bearer KEY, or X-API-Key: KEY."
    return Problem(401, "Key needed", detail, headers={"WWW-Authenticate": 'Bearer realm="livewick"'})
