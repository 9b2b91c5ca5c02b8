"""Streaming a range of records as CSV, page by page, in bounded memory."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from starlette.responses import Response, StreamingResponse

from service.api.problem import CutShort
from service.csv_cells import RECORDS, cells, columns
from service.ports import StoreUnavailable

log = structlog.get_logger(__name__)
PAGE = 2_000
Read = Callable[[str, int | None, int | None, int], Awaitable[Sequence[Any]]]


async def stream_csv(
    name: str, read: Read, market: str, start: int | None, end: int | None, limit: int | None
) -> Response:
    """Answer with every record of the range, or the first ``limit``; the first page is read before the status is sent.

    A database that goes away later cuts the connection off, which a client sees as an incomplete body.
    """
    first = await read(market, start, end, min(PAGE, limit or PAGE))
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(
        _rows(name, read, market, first, end, limit), media_type="text/csv; charset=utf-8", headers=headers
    )


async def _rows(
    name: str, read: Read, market: str, page: Sequence[Any], end: int | None, limit: int | None
) -> AsyncIterator[str]:
    yield ",".join(columns(RECORDS[name])) + "\r\n"
    left = limit
    while page:
        yield _text(page)
        left = None if left is None else left - len(page)
        if len(page) < PAGE or left == 0:
            return
        try:
            page = await read(market, page[-1].open_time + 1, end, PAGE if left is None else min(PAGE, left))
        except StoreUnavailable as error:
            log.warning("database went away while a CSV was sent", reason=str(error))
            raise CutShort from error


def _text(rows: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(cells(row) for row in rows)
    return buffer.getvalue()
