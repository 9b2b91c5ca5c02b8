"""The outermost layer of every request: id, metrics, log line, safe headers, and the last error guard."""

from __future__ import annotations

import time
import uuid
from collections.abc import MutableMapping
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from service.api.metrics import STATIC, UNMATCHED, Metrics
from service.api.problem import CutShort, Problem, answer

log = structlog.get_logger(__name__)
CSP = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
INTERNAL_ERROR = 1011
SAFE_HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}


class Observe:
    """Pure ASGI middleware around everything but CORS, so that its 500 carries CORS headers too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            if scope["type"] == "websocket":
                await self._websocket(scope, receive, send, request_id)
            else:
                await self._http(scope, receive, send, request_id)

    async def _http(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except CutShort:
            return  # uvicorn closes a connection whose answer was not completed.
        except Exception as error:  # The one place for bugs of a request: logged whole, answered without detail.
            log.error("request failed", route=route_template(scope), exc_info=error)
            if status:
                return  # Half an answer is out; uvicorn closes the connection, which tells the client.
            await answer(_bug(), scope, receive, send_with_headers)
        finally:
            self._count(scope, status, time.perf_counter() - started)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        answered = False

        async def send_with_headers(message: Message) -> None:
            nonlocal answered
            if message["type"] == "websocket.http.response.start":
                _add_headers(message, request_id)
                self._metrics.sockets_refused.inc()
                log.debug("websocket refused", status=message["status"])
            elif message["type"] == "websocket.accept":
                MutableHeaders(raw=message.setdefault("headers", []))["X-Request-ID"] = request_id
            answered = True
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except WebSocketDisconnect:
            return  # It left before it was answered.
        except Exception as error:  # As for HTTP: logged whole, told without detail.
            log.error("websocket failed", exc_info=error)
            if answered:
                await send({"type": "websocket.close", "code": INTERNAL_ERROR})
            else:
                await answer(_bug(), scope, receive, send_with_headers)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = route_template(scope)
        self._metrics.answered(scope["method"], route, status, seconds)
        log.debug("request", method=_method(scope), route=route, status=status, ms=round(seconds * 1000, 2))


def _bug() -> Problem:
    return Problem(500, "Internal error", "This is a bug; the request id finds it in the log.")


def _add_headers(message: MutableMapping[str, Any], request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-ID"] = request_id
    for name, value in SAFE_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")


def route_template(scope: Scope) -> str:
    """Return the path as the route declares it; what matches no route is one word, so scanners cannot make labels."""
    template = getattr(scope.get("route"), "path", None)
    if template is not None:
        return str(template)
    return STATIC if scope["path"].startswith("/static/") else UNMATCHED


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "other"
