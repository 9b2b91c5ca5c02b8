"""Streaming a range of records as CSV, page by page, in bounded memory."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from starlette.responses import Response, StreamingResponse

from models.records import Prediction
from service.api.problem import CutShort
from service.ports import StoreUnavailable
from service.strict_json import encode

log = structlog.get_logger(__name__)
PAGE = 2_000
COLUMNS: dict[str, tuple[str, ...]] = {
    "candles": ("market", "open_time", "open", "high", "low", "close", "volume", "source"),
    "predictions": (
        *("market", "open_time", "made_at", "step", "p_down", "p_flat", "p_up", "direction"),
        *("close", "close_low", "close_high", "trend_horizon", "trend_p_up", "weights", "simulated"),
    ),
    "steps": (
        *("market", "open_time", "source", "step", "loss", "train_loss", "correct", "trend_correct", "direction"),
        *("label", "grad_norm", "grad_norm_clipped", "clipped", "skipped", "learning_rate"),
        *("infer_ms", "train_ms", "lag_ms", "queue_depth"),
    ),
}
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
    yield ",".join(COLUMNS[name]) + "\r\n"
    left = limit
    while page:
        yield _text(COLUMNS[name], page)
        left = None if left is None else left - len(page)
        if len(page) < PAGE or left == 0:
            return
        try:
            page = await read(market, page[-1].open_time + 1, end, PAGE if left is None else min(PAGE, left))
        except StoreUnavailable as error:
            log.warning("database went away while a CSV was sent", reason=str(error))
            raise CutShort from error


def _text(columns: Sequence[str], rows: Sequence[Any]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerows([_cell(_value(row, column)) for column in columns] for row in rows)
    return buffer.getvalue()


def _value(row: Any, column: str) -> Any:
    if isinstance(row, Prediction) and column.startswith("trend_"):
        return getattr(row.trend, column.removeprefix("trend_"))
    return getattr(row, column)


def _cell(value: Any) -> str:
    """Write floats so that they read back as the same bits; null and not finite as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool | dict | float):
        text = encode(value).decode()
        return "" if text == "null" else text
    return str(value)
