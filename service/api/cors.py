"""Cors: what a browser is told about pages of other sites."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problem import Problem
from service.api.security import READING_POSTS


class Cors:
    """Pages of ``origins`` may read, and post where that changes nothing; the Guard refuses what they send anyway."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._reads = _Answers(app, origins, ["GET"])
        self._posts = _Answers(app, origins, ["GET", "POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        posts = scope["type"] == "http" and scope["path"] in READING_POSTS
        await (self._posts if posts else self._reads)(scope, receive, send)


class _Answers(CORSMiddleware):
    """Starlette's, whose refusals are problems."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], methods: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=methods,
            allow_headers=["Authorization", "X-API-Key", "Content-Type"],
            expose_headers=["X-Request-ID", "Retry-After"],
            max_age=600,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer whether the page may send its request."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        kept = {k: v for k, v in response.headers.items() if not k.startswith("content-")}
        return Problem(400, "Not allowed", "A page of this origin may not send this.", headers=kept).response()
