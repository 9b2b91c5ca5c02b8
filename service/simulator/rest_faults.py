"""What faults do to REST answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from service.simulator.faults import Fault, FaultBook
from service.simulator.wire import error

_CODES = {418: -1003, 429: -1003, 451: 0, 403: 0, 500: -1000, 503: -1001, 504: -1007}
_LOOK_SECONDS = 0.02


def rest_faults(book: FaultBook, since_start: Callable[[], float]) -> Middleware:
    """Make the middleware that answers, or does not answer, in the place of the exchange."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/api/"):
            return await handler(request)
        while book.active("rest_stall", since_start()) or book.active("cut", since_start()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        if book.active("down", since_start()) and request.transport is not None:
            request.transport.abort()  # a connection kept open from before
        status = book.active("rest_status", since_start())
        if status is not None:
            return _refusal(status)
        text = book.active("rest_text", since_start())
        if text is not None and request.path.endswith("/klines"):
            return _nonsense(text, await handler(request))
        return await handler(request)

    return middleware


def disturbed_rows(rows: list[list[Any]], book: FaultBook, now_ms: float) -> list[list[Any]]:
    """Return the rows of a klines answer as the faults of now leave them."""
    if book.active("rest_missing", now_ms):
        rows = [row for row in rows if row[0] // 1_000 % 3]
    if book.active("rest_bad_rows", now_ms):
        rows = [_bad(row) if row[0] // 1_000 % 5 == 0 else row for row in rows]
    if book.active("rest_doubled", now_ms):
        rows = [*reversed(rows), *rows]
    return rows


def _bad(row: list[Any]) -> list[Any]:
    spoilt: tuple[tuple[int, Any], ...] = ((4, "NaN"), (2, "0"), (0, None), (5, "-1"), (0, row[0] // 1_000), (1, ""))
    place, value = spoilt[row[0] // 5_000 % len(spoilt)]
    return [*row[:place], value, *row[place + 1 :]]


def _refusal(fault: Fault) -> web.Response:
    status = fault.option("status", 503)
    headers = {}
    if fault.options.get("retry_after") is not None and status in (418, 429):
        headers["Retry-After"] = str(fault.options["retry_after"])
    if status not in _CODES:
        return web.Response(status=status, text="<html><body>Bad Gateway</body></html>", content_type="text/html")
    if status == 451:
        body = error(0, "Service unavailable from a restricted location according to 'b. Eligibility'")
        return web.json_response(body, status=status)
    return web.json_response(error(_CODES[status], "Something went wrong."), status=status, headers=headers)


def _nonsense(fault: Fault, answer: web.StreamResponse) -> web.StreamResponse:
    kind = fault.options.get("text", "truncated")
    if kind == "html":
        return web.Response(text="<html><body>One moment, please</body></html>", content_type="text/html")
    if kind == "truncated" and isinstance(answer, web.Response) and answer.text:
        return web.Response(text=answer.text[: len(answer.text) * 2 // 3], content_type="application/json")
    return web.json_response({} if kind == "object" else [])
