"""GET /candles, /predictions, /steps, /events, /series: what is stored, by pages or as CSV."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from service.api.answers import Time, json_response, whole, written_as
from service.api.csv_stream import stream_csv
from service.api.deps import Deps, Market
from service.api.schemas import CandlePage, EventPage, PredictionPage, SeriesOut, StepPage, problems
from service.ports import SERIES_FIELDS

router = APIRouter(tags=["history"])
DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_BUCKET = 7 * 86_400
Read = Callable[[str, int | None, int | None, int], Awaitable[Sequence[Any]]]

Start = Annotated[Time | None, Query(description="First `open_time` wanted, UTC ms, inclusive.")]
End = Annotated[Time | None, Query(description="Where to stop, UTC ms, exclusive.")]
CURSOR = "^t[0-9a-f]{1,14}$"
Cursor = Annotated[
    Annotated[str, Field(pattern=CURSOR), written_as(CURSOR, "the `next` of the page before is needed")] | None,
    Query(description="`next` of the page before."),
]
Limit = Annotated[
    Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(whole)] | None,
    Query(description="Rows wanted; 1,000 when left out (all of the range for CSV)."),
]
_FIELD = "|".join(SERIES_FIELDS)
FIELDS = f"^({_FIELD})(,({_FIELD}))*$"
LISTED = "comma list of: " + ", ".join(SERIES_FIELDS)
Format = Annotated[Literal["json", "csv"], Query(description="`csv` streams.")]


def _pages(model: type) -> dict[int | str, dict[str, Any]]:
    csv = {"text/csv": {"schema": {"type": "string"}}}
    return {200: {"model": model, "content": csv}, **problems(404, 422, 503)}


@router.get("/candles", responses=_pages(CandlePage))
async def stored_candles(
    deps: Deps,
    market: Market,
    start: Start = None,
    end: End = None,
    limit: Limit = None,
    cursor: Cursor = None,
    format: Format = "json",
) -> Response:
    """List closed candles."""
    return await _history("candles", deps.store.candles, market.market, start, end, limit, cursor, format)


@router.get("/predictions", responses=_pages(PredictionPage))
async def stored_predictions(
    deps: Deps,
    market: Market,
    start: Start = None,
    end: End = None,
    limit: Limit = None,
    cursor: Cursor = None,
    format: Format = "json",
) -> Response:
    """List the predictions of the current run, as they were published."""
    return await _history("predictions", deps.store.predictions, market.market, start, end, limit, cursor, format)


@router.get("/steps", responses=_pages(StepPage))
async def stored_steps(
    deps: Deps,
    market: Market,
    start: Start = None,
    end: End = None,
    limit: Limit = None,
    cursor: Cursor = None,
    format: Format = "json",
) -> Response:
    """List the steps of the current run."""
    return await _history("steps", deps.store.steps, market.market, start, end, limit, cursor, format)


@router.get("/events", responses={200: {"model": EventPage}, **problems(404, 422, 503)})
async def stored_events(
    deps: Deps, market: Market, start: Start = None, end: End = None, limit: Limit = None, cursor: Cursor = None
) -> Response:
    """List gaps, stale feeds, drifts, restarts and other events; `start` and `end` are about `at`."""
    rows, following = await _page(
        deps.store.events, market.market, _from(start, cursor), end, limit or DEFAULT_LIMIT, "at"
    )
    return json_response({"items": rows, "next": following})


@router.get("/series", responses={200: {"model": SeriesOut}, **problems(404, 422, 503)})
async def series(
    deps: Deps,
    market: Market,
    fields: Annotated[
        str, Field(pattern=FIELDS), written_as(FIELDS, f"a {LISTED} is needed"), Query(description=LISTED.capitalize())
    ] = "loss,accuracy",
    bucket: Annotated[int, Field(ge=1, le=MAX_BUCKET), BeforeValidator(whole), Query(description="Seconds.")] = 60,
    start: Start = None,
    end: End = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """Tell means per bucket of `bucket` seconds; a page ends where `limit` or about a million steps are reached."""
    names = list(dict.fromkeys(fields.split(",")))
    name = market.market
    points = await deps.store.series(name, names, bucket, _from(start, cursor), end, limit or DEFAULT_LIMIT)
    items = [{"open_time": point.open_time, **point.values, "count": point.count} for point in points]
    rest = await deps.store.steps(name, points[-1].open_time + bucket * 1000, end, 1) if points else []
    following = _cursor(rest[0].open_time) if rest else None
    return json_response({"bucket": bucket, "items": items, "next": following})


async def _history(
    name: str,
    read: Read,
    market: str,
    start: int | None,
    end: int | None,
    limit: int | None,
    cursor: str | None,
    format: str,
) -> Response:
    first = _from(start, cursor)
    if format == "csv":
        return await stream_csv(name, read, market, first, end, limit)
    rows, following = await _page(read, market, first, end, limit or DEFAULT_LIMIT, "open_time")
    return json_response({"items": rows, "next": following})


async def _page(
    read: Read, market: str, start: int | None, end: int | None, limit: int, order: str
) -> tuple[Sequence[Any], str | None]:
    """Read one row more than wanted: where it starts, the next page starts; rows of one time stay together."""
    rows = await read(market, start, end, limit + 1)
    if len(rows) <= limit:
        return rows, None
    following = getattr(rows[limit], order)
    page = [row for row in rows[:limit] if getattr(row, order) < following]
    if not page:  # More rows of one millisecond than the limit allows: the rest of them cannot be paged to.
        return rows[:limit], _cursor(following + 1)
    return page, _cursor(following)


def _from(start: int | None, cursor: str | None) -> int | None:
    if cursor is None:
        return start
    return max(start or 0, int(cursor[1:], 16))


def _cursor(time: int) -> str:
    return f"t{time:x}"
