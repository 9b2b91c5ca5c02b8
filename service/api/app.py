"""create_api: the FastAPI application, put together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.api import health, history, limits, metrics, operate, predict, score, stream, tickets
from service.api.deps import ApiDeps, refuse_unknown_parameters
from service.api.guard import OPEN_PATHS, Guard
from service.api.limits import SocketLimit
from service.api.observe import Observe
from service.api.page import mount_page
from service.api.problem import install_handlers, nothing_here
from service.api.schemas import ProblemOut
from service.api.security import Tickets

DESCRIPTION = """\
Watches a live market, predicts the next candle, learns from each candle as it closes.

Times are UTC milliseconds. Errors are `application/problem+json` (RFC 9457). An unknown or repeated query parameter is
refused. Frames as they happen: the WebSocket `/ws?market=&kinds=prediction,step,event&after=SEQ`.
"""


def create_api(deps: ApiDeps) -> FastAPI:
    """Build the API; it owns no task and no connection, what ``deps`` brings is started and closed elsewhere."""
    app = FastAPI(
        title="Livewick", version=deps.options.version, description=DESCRIPTION, docs_url=None, redoc_url=None
    )
    app.state.deps = deps
    app.state.sockets = SocketLimit(deps.options.sockets, deps.options.sockets_per_client)
    app.state.tickets = Tickets(time.monotonic)
    app.state.predictions = predict.PredictionCache()
    app.state.scores = score.ScoreCache()
    # Bounded: so many previews are with a market's learner, so many wait for that, and the next is answered 503.
    app.state.previews = defaultdict(
        lambda: limits.Places(deps.options.previews_at_once, deps.options.previews_waiting)
    )
    app.state.metrics = metrics.Metrics(deps, app.state.sockets, app.state.previews)
    for module in (predict, history, score, operate, health, metrics, tickets):
        app.include_router(module.router, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(stream.router)
    mount_page(app, deps)
    app.router.default = nothing_here
    app.state.methods = route_methods(app.routes)
    app.state.metrics.expect_routes(app.state.methods)
    install_handlers(app)
    _add_middleware(app, deps)
    _document(app, deps)
    return app


def route_methods(routes: Iterable[BaseRoute]) -> dict[str, set[str]]:
    """Map the path template of every HTTP route, also of included routers, to its methods."""
    methods: dict[str, set[str]] = {}
    for route in walk_routes(routes):
        if isinstance(route, Route):
            methods.setdefault(route.path, set()).update(route.methods or ())
    return methods


def walk_routes(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield every route, those of included routers too."""
    for route in routes:
        yield route
        yield from walk_routes(getattr(getattr(route, "original_router", None), "routes", ()))


def _add_middleware(app: FastAPI, deps: ApiDeps) -> None:
    """Wrap from the inside out: the last one added sees a request first."""
    options = deps.options
    app.add_middleware(Guard, options=options)
    app.add_middleware(Observe, metrics=app.state.metrics)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type"],
            expose_headers=["X-Request-ID", "Retry-After"],
            max_age=600,
        )
    if options.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(options.trusted_proxies))


def _document(app: FastAPI, deps: ApiDeps) -> None:
    """Complete the OpenAPI document: the problem schema, and the keys where there are any."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            schemas = document["components"]["schemas"]
            schemas["ProblemOut"] = ProblemOut.model_json_schema(ref_template="#/components/schemas/{model}")
            _summarize(document)
            _drop_null_parameters(document)
            if deps.options.api_keys:
                _require_keys(document)
        return app.openapi_schema or make()

    app.openapi = openapi  # type: ignore[method-assign]


def _summarize(document: dict[str, Any]) -> None:
    """Call an operation by its first sentence, not by the name of its function."""
    for calls in document["paths"].values():
        for call in calls.values():
            call["summary"] = call["description"].partition(".")[0]


def _drop_null_parameters(document: dict[str, Any]) -> None:
    """A query parameter may be left out, but there is no way to write null in one."""
    for calls in document["paths"].values():
        for call in calls.values():
            for parameter in call.get("parameters", ()):
                kept = [schema for schema in parameter["schema"].pop("anyOf", ()) if schema != {"type": "null"}]
                parameter["schema"].update(kept[0] if kept else {})


def _require_keys(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    document["security"] = [{"bearer": []}, {"key": []}]
    for path, calls in document["paths"].items():
        if path in OPEN_PATHS:
            for call in calls.values():
                call["security"] = []
