"""Problem: every error as application/problem+json (RFC 9457), never with the offending value in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from service.ports import LearnerUnavailable, StoreUnavailable
from service.strict_json import encode

CONTENT_TYPE = "application/problem+json"
log = structlog.get_logger(__name__)


class Problem(Exception):
    """An answer other than the one asked for: status, a short title, one sentence, and when to come again."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, retry_after))
        self.members = members

    def response(self, request_id: str | None = None) -> Response:
        """Render it; ``request_id`` lets a person find the log lines."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if request_id is not None:
            body["request_id"] = request_id
        body.update(self.members)
        return Response(encode(body), self.status, self.headers, CONTENT_TYPE)


class CutShort(Exception):
    """An answer that has begun cannot be finished: the connection is cut, so that the client sees it is incomplete."""


NOTHING_HERE = "There is nothing at this path."


async def answer(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or the handshake of a WebSocket, with a problem."""
    response = problem.response(scope["state"]["request_id"])
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request or a WebSocket to a path that no route has."""
    await answer(Problem(404, "Not Found", NOTHING_HERE), scope, receive, send)


def install_handlers(app: FastAPI) -> None:
    """Turn every expected error of a route into its problem response; the unexpected are left to the outer guard."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(StoreUnavailable, _store_unavailable)
    app.add_exception_handler(LearnerUnavailable, _learner_unavailable)


def request_id(request: Request) -> str | None:
    """Return the id that the outermost middleware gave this request."""
    value: str | None = request.scope.get("state", {}).get("request_id")
    return value


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - Starlette's signature is wider than what it calls us with
    return error.response(request_id(request))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    title = HTTPStatus(error.status_code).phrase
    details = {404: NOTHING_HERE, 405: "This path does not take this method."}
    detail = details.get(error.status_code, title)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of one route; a path may have several.
        path = getattr(request.scope.get("route"), "path", request.url.path)
        # What is no route of its own is a file of the page.
        headers["Allow"] = ", ".join(sorted(request.app.state.methods.get(path, ("GET", "HEAD"))))
    return Problem(error.status_code, title, detail, headers=headers).response(request_id(request))


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    errors = describe_errors(error.errors())
    detail = "; ".join(f"{item['where']}: {item['message']}" for item in errors)
    return Problem(422, "Invalid request", detail, errors=errors).response(request_id(request))


def describe_errors(errors: Sequence[Any]) -> list[dict[str, str]]:
    """Keep where and why of pydantic's errors, drop what was there."""
    return [
        {
            "where": ".".join(str(part) for part in error["loc"]),
            "message": str(error["msg"]).removeprefix("Value error, "),
        }
        for error in errors[:10]
    ]


async def _store_unavailable(request: Request, error: Exception) -> Response:
    log.warning("database unavailable for a request", reason=str(error))
    problem = Problem(503, "Database unavailable", "The database does not answer; try again.", retry_after=5)
    return problem.response(request_id(request))


async def _learner_unavailable(request: Request, error: Exception) -> Response:
    seconds = error.retry_after_seconds if isinstance(error, LearnerUnavailable) else 5
    detail = "The learner is starting, starting again or busy; try again."
    return Problem(503, "Learner unavailable", detail, retry_after=seconds).response(request_id(request))
