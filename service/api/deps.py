"""What the API is built from, and how a request finds its market."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection

from service.api.problem import Problem
from service.broadcast import Broadcaster
from service.ports import LiveMarket, RecordStore


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """How the API guards itself. Empty ``api_keys`` means open; empty ``allowed_hosts`` means any Host header.

    ``trusted_proxies`` are addresses or networks whose X-Forwarded-For is believed; none by default.
    """

    version: str = "0"
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    requests_per_minute: int = 60_000
    sockets: int = 2_000
    sockets_per_client: int = 1_000
    body_bytes: int = 1 << 20
    body_seconds: float = 10.0
    send_seconds: float = 10.0
    auth_seconds: float = 5.0
    previews_at_once: int = 8
    previews_waiting: int = 32


@dataclass(frozen=True)
class ApiDeps:
    """What the API answers from. ``markets`` may fill later: it is read at request time. ``clock`` gives UTC ms."""

    markets: Mapping[str, LiveMarket]
    store: RecordStore
    broadcaster: Broadcaster
    clock: Callable[[], int]
    options: ApiOptions = ApiOptions()
    static: Path = Path(__file__).parent.parent / "dashboard" / "static"


# Dependencies are async although they wait for nothing: FastAPI runs plain functions in threads, at a higher cost.
async def api_deps(connection: HTTPConnection) -> ApiDeps:
    """Return the dependencies that create_api was given."""
    deps: ApiDeps = connection.app.state.deps
    return deps


Deps = Annotated[ApiDeps, Depends(api_deps)]

MarketName = Annotated[
    str | None,
    Query(
        max_length=100,
        description="`EXCHANGE:SYMBOL`; may be left out when there is one market.",
        examples=["binance:ETH/USDT"],
    ),
]


def find_market(deps: ApiDeps, name: str | None) -> LiveMarket:
    """Return the market of that name, or the only one; raise a Problem that does not quote the name."""
    markets = deps.markets
    if name is not None:
        if name in markets:
            return markets[name]
        raise Problem(404, "Unknown market", "This market is not followed; GET /markets lists those that are.")
    if len(markets) == 1:
        return next(iter(markets.values()))
    if not markets:
        raise Problem(503, "Starting", "No market is followed yet: the service is starting.", retry_after=2)
    raise Problem(422, "Market needed", "Several markets are followed: name one with `market`.")


async def _market(deps: Deps, market: MarketName = None) -> LiveMarket:
    return find_market(deps, market)


Market = Annotated[LiveMarket, Depends(_market)]


async def refuse_unknown_parameters(request: Request) -> None:
    """Answer 422 to a query parameter that the route does not have, or that was given twice."""
    refuse_odd_parameters(
        request.query_params, {field.alias for field in _query_fields(request.scope["route"].dependant)}
    )


def refuse_odd_parameters(query: QueryParams, known: set[str]) -> None:
    """Raise the Problem of an unknown query parameter, naming those that are ``known``, or of a repeated one."""
    if any(name not in known for name in query):
        names = ", ".join(sorted(known)) or "none"
        raise Problem(422, "Unknown query parameter", f"A query parameter is unknown; this call takes: {names}.")
    if len(query.multi_items()) != len(query):
        raise Problem(422, "Repeated query parameter", "A query parameter was given more than once.")


def _query_fields(dependant: Any) -> list[Any]:
    """List the query parameters of a dependant and of everything it depends on."""
    fields = list(dependant.query_params)
    for inner in dependant.dependencies:
        fields.extend(_query_fields(inner))
    return fields
