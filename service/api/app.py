"""create_api: the FastAPI application, put together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from fastapi import Depends, FastAPI
from starlette.routing import BaseRoute, Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.api import health, history, limits, metrics, operate, predict, score, stream, tickets
from service.api.cors import Cors
from service.api.deps import ApiDeps, refuse_unknown_parameters
from service.api.document import DESCRIPTION, complete_document
from service.api.guard import Guard
from service.api.limits import SocketLimit
from service.api.observe import Observe
from service.api.page import mount_page
from service.api.problem import install_handlers, nothing_here
from service.api.security import Tickets


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
    # Bounded: so many previews are with a market's learner at once, so many in all; the next is answered 503.
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
    complete_document(app, keyed=bool(deps.options.api_keys))
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
        app.add_middleware(Cors, origins=options.allowed_origins)
    if options.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(options.trusted_proxies))
