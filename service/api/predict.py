"""GET and POST /predict: the live learner's latest prediction, and one for candles of the caller's own."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.candle import Candle, InvalidCandle
from models.records import Prediction
from service.api.answers import json_response
from service.api.body import read_body
from service.api.deps import Deps, Market, find_market
from service.api.limits import Busy, Places
from service.api.problem import Problem
from service.api.schemas import PredictionOut, problems
from service.ports import LiveMarket
from service.strict_json import InvalidJSON, decode, encode

router = APIRouter(tags=["predict"])
MAX_CANDLES = 10_000
CHUNK = 200
"""Candles validated before other requests get their turn: about 1 ms."""

_ROW = {
    "type": "array",
    "description": "open_time (UTC ms), open, high, low, close, volume",
    "prefixItems": [
        {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
        *[{"type": "number", "exclusiveMinimum": 0}] * 4,
        {"type": "number", "minimum": 0},
    ],
    "minItems": 6,
    "maxItems": 6,
}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["candles"],
                "additionalProperties": False,
                "properties": {
                    "market": {"type": "string", "maxLength": 100},
                    "candles": {"type": "array", "minItems": 2, "maxItems": MAX_CANDLES, "items": _ROW},
                },
            },
            "example": {
                "candles": [
                    [1_559_865_600_000, 250.1, 250.2, 250.0, 250.15, 3.2],
                    [1_559_865_601_000, 250.15, 250.15, 250.1, 250.1, 0.4],
                ]
            },
        }
    },
}


class PredictionCache:
    """The encoded latest prediction of each market: encoded once per candle, however often it is asked for."""

    def __init__(self) -> None:
        self._encoded: dict[str, tuple[Prediction, bytes]] = {}

    def encoded(self, market: str, prediction: Prediction) -> bytes:
        """Return the JSON of ``market``'s prediction."""
        kept = self._encoded.get(market)
        if kept is None or kept[0] is not prediction:
            kept = self._encoded[market] = prediction, encode(prediction)
        return kept[1]


@router.get("/predict", responses={200: {"model": PredictionOut}, **problems(404, 422, 503)})
async def latest_prediction(request: Request, market: Market) -> Response:
    """Tell the latest prediction of the live learner."""
    status, prediction = market.status(), market.prediction()
    if status.phase != "live" or prediction is None:
        detail = status.reason or "No prediction has been made yet."
        raise Problem(503, "Not live", detail, retry_after=_retry_after(status.phase), phase=status.phase)
    cache: PredictionCache = request.app.state.predictions
    return Response(cache.encoded(market.market, prediction), media_type="application/json")


def _retry_after(phase: str) -> int:
    return {"stale": 5, "stopped": 30}.get(phase, 2)


@router.post(
    "/predict",
    responses={200: {"model": PredictionOut}, **problems(404, 408, 413, 422, 503)},
    openapi_extra={"requestBody": _BODY},
)
async def predict_given_candles(request: Request, deps: Deps) -> Response:
    """Predict the candle after the last one given, with the current weights; changes nothing.

    The candles must be consecutive. At least 2, at most 10,000; the body at most 1 MiB.
    """
    body = await read_body(request, deps.options.body_bytes, deps.options.body_seconds)
    name, rows = parse_body(body)
    market = find_market(deps, name)
    candles = await parse_candles(rows, market.market, market.interval_ms)
    return json_response(await _preview(request, market, candles))


async def _preview(request: Request, market: LiveMarket, candles: list[Candle]) -> Prediction:
    """Ask the learner, which answers the questions that wait for it together."""
    places: dict[str, Places] = request.app.state.previews
    try:
        async with places[market.market].take():
            return await market.preview(candles)
    except Busy:
        problem = Problem(503, "Busy", "Too many predictions are being asked for at once.", retry_after=1)
        raise problem from None


def parse_body(body: bytes) -> tuple[str | None, list[Any]]:
    """Return the market's name and the rows of a POST /predict body, or raise the Problem."""
    try:
        data = decode(body)
    except InvalidJSON as error:
        raise Problem(422, "Invalid JSON", f"The body is not strict JSON: {error}.") from None
    if not isinstance(data, dict):
        raise _invalid("body", "an object with `candles` is needed")
    if not data.keys() <= {"market", "candles"}:
        raise _invalid("body", "only `market` and `candles` are known")
    name, rows = data.get("market"), data.get("candles")
    if "market" in data and not (isinstance(name, str) and len(name) <= 100):
        raise _invalid("market", "a string of at most 100 characters is needed")
    if not isinstance(rows, list) or not 2 <= len(rows) <= MAX_CANDLES:
        raise _invalid("candles", f"a list of 2 to {MAX_CANDLES} rows is needed")
    return name, rows


async def parse_candles(rows: list[Any], market: str, interval_ms: int) -> list[Candle]:
    """Turn rows into consecutive candles, or raise a Problem that says which row is wrong and why."""
    candles: list[Candle] = []
    for start in range(0, len(rows), CHUNK):
        if start:
            await asyncio.sleep(0)
        for index, row in enumerate(rows[start : start + CHUNK], start):
            candle = _candle(index, row, market)
            if candles and candle.open_time != candles[-1].open_time + interval_ms:
                raise _invalid(f"candles.{index}", f"open_time does not follow the row before by {interval_ms} ms")
            candles.append(candle)
    return candles


def _candle(index: int, row: Any, market: str) -> Candle:
    where = f"candles.{index}"
    if not isinstance(row, list) or len(row) != 6:
        raise _invalid(where, "a row of 6 numbers is needed: open_time, open, high, low, close, volume")
    time, *numbers = row
    if type(time) is not int:
        raise _invalid(where, "open_time must be a whole number of UTC milliseconds")
    if any(type(value) is not float and type(value) is not int for value in numbers):
        raise _invalid(where, "prices and volume must be numbers")
    try:
        opened, high, low, close, volume = map(float, numbers)
        return Candle(market, time, opened, high, low, close, volume)
    except InvalidCandle as error:
        raise _invalid(where, _REASONS.get(error.reason, "the row is not a candle")) from None


_REASONS = {
    "time": "open_time must be UTC milliseconds, above 0 and below 2**53",
    "nonfinite": "every number must be finite",
    "price": "prices must be above 0",
    "range": "low <= open, close <= high does not hold",
    "volume": "volume must not be below 0",
}


def _invalid(where: str, message: str) -> Problem:
    return Problem(422, "Invalid request", f"{where}: {message}", errors=[{"where": where, "message": message}])
