"""A small typed client of the API, plain and async: records in, records out.

with Client("http://127.0.0.1:8000") as livewick:
    print(livewick.predict().direction)

async with AsyncClient("http://127.0.0.1:8000", key="…") as livewick:
    async for frame in livewick.follow():
        print(frame)
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeVar
from urllib.parse import urlencode

import httpx
from websockets import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.asyncio.client import connect

from models.candle import Candle
from models.records import Prediction, ScoreWindow, Step
from service.client_frames import Frame, parse_candle, parse_frame, parse_prediction, parse_step

T = TypeVar("T")
Row = tuple[int, float, float, float, float, float]
TIMEOUT_SECONDS = 30.0
PAGE = 10_000
POLICY_VIOLATION = 1008
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 15.0


class ApiError(Exception):
    """The service answered with a problem; ``retry_after`` is in seconds where it said when to come again."""

    def __init__(self, status: int, title: str, detail: str, retry_after: int | None = None) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """One request and how to read its answer: all that is the same with and without async."""

    method: Literal["GET", "POST"]
    path: str
    query: dict[str, Any]
    parse: Callable[[Any], T]
    body: Any = None

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        query = {name: value for name, value in self.query.items() if value is not None}
        return client.build_request(self.method, self.path, params=query, json=self.body)

    def read(self, answer: httpx.Response) -> T:
        if answer.is_success:
            return self.parse(answer.json())
        raise _error(answer.status_code, answer.headers, answer.content)


def _error(status: int, headers: Any, body: bytes | bytearray | None) -> ApiError:
    try:
        problem = json.loads(body or b"{}")
        title, detail = problem["title"], problem["detail"]
    except (ValueError, KeyError, TypeError):
        title, detail = "Error", "the answer was no problem document"
    seconds = headers.get("retry-after", "")
    return ApiError(status, title, detail, int(seconds) if seconds.isdecimal() else None)


def _predict(market: str | None) -> _Call[Prediction]:
    return _Call("GET", "/predict", {"market": market}, parse_prediction)


def _predict_candles(candles: Sequence[Candle | Row], market: str | None) -> _Call[Prediction]:
    rows = [
        [row.open_time, row.open, row.high, row.low, row.close, row.volume] if isinstance(row, Candle) else list(row)
        for row in candles
    ]
    body = {"candles": rows} | ({"market": market} if market is not None else {})
    return _Call("POST", "/predict", {}, parse_prediction, body)


def _page(path: str, parse: Callable[[Any], T], query: dict[str, Any]) -> _Call[tuple[list[T], str | None]]:
    return _Call("GET", path, query, lambda page: ([parse(item) for item in page["items"]], page["next"]))


def _plain(method: Literal["GET", "POST"], path: str, **query: Any) -> _Call[dict[str, Any]]:
    return _Call(method, path, query, lambda body: dict(body))


def _score(market: str | None, window: ScoreWindow, live: bool) -> _Call[dict[str, Any]]:
    return _plain("GET", "/score", market=market, window=window, live="true" if live else None)


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


class Client:
    """The API, one call at a time. Raises ApiError for problems and httpx.HTTPError when the service is away."""

    def __init__(self, url: str, key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(base_url=url, headers=_headers(key), timeout=TIMEOUT_SECONDS, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def predict(self, market: str | None = None) -> Prediction:
        """Return the live learner's latest prediction."""
        return self._send(_predict(market))

    def predict_candles(self, candles: Sequence[Candle | Row], market: str | None = None) -> Prediction:
        """Predict the candle after these consecutive ones."""
        return self._send(_predict_candles(candles, market))

    def candles(self, market: str | None = None, start: int | None = None, end: int | None = None) -> Iterator[Candle]:
        """Iterate the stored candles from ``start`` (inclusive) to ``end`` (exclusive), fetched by pages."""
        return self._all("/candles", parse_candle, market, start, end)

    def predictions(
        self, market: str | None = None, start: int | None = None, end: int | None = None
    ) -> Iterator[Prediction]:
        """Iterate the stored predictions."""
        return self._all("/predictions", parse_prediction, market, start, end)

    def steps(self, market: str | None = None, start: int | None = None, end: int | None = None) -> Iterator[Step]:
        """Iterate the stored steps."""
        return self._all("/steps", parse_step, market, start, end)

    def score(self, market: str | None = None, window: ScoreWindow = None, live: bool = False) -> dict[str, Any]:
        """Return the score over the last ``window`` candles, "fading", or of the whole run."""
        return self._send(_score(market, window, live))

    def markets(self) -> list[dict[str, Any]]:
        """Return the state of every followed market."""
        return list(self._send(_plain("GET", "/markets"))["markets"])

    def model(self, market: str | None = None) -> dict[str, Any]:
        """Return what the learner is and how far it has learned."""
        return self._send(_plain("GET", "/model", market=market))

    def operate(
        self, action: Literal["pause", "resume", "checkpoint", "rollback"], market: str | None = None
    ) -> dict[str, Any]:
        """Pause or resume training, save a checkpoint, or go back to the one before."""
        return self._send(_plain("POST", f"/model/{action}", market=market))

    def _all(
        self, path: str, parse: Callable[[Any], T], market: str | None, start: int | None, end: int | None
    ) -> Iterator[T]:
        cursor: str | None = None
        query = {"market": market, "start": start, "end": end, "limit": PAGE}
        while True:
            items, cursor = self._send(_page(path, parse, query | {"cursor": cursor}))
            yield from items
            if cursor is None:
                return

    def _send(self, call: _Call[T]) -> T:
        return call.read(self._http.send(call.request(self._http)))


class AsyncClient:
    """The API for asyncio. Raises ApiError for problems and httpx.HTTPError when the service is away."""

    def __init__(self, url: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._headers = _headers(key)
        self._http = httpx.AsyncClient(
            base_url=url, headers=self._headers, timeout=TIMEOUT_SECONDS, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def predict(self, market: str | None = None) -> Prediction:
        """Return the live learner's latest prediction."""
        return await self._send(_predict(market))

    async def predict_candles(self, candles: Sequence[Candle | Row], market: str | None = None) -> Prediction:
        """Predict the candle after these consecutive ones."""
        return await self._send(_predict_candles(candles, market))

    def candles(
        self, market: str | None = None, start: int | None = None, end: int | None = None
    ) -> AsyncIterator[Candle]:
        """Iterate the stored candles from ``start`` (inclusive) to ``end`` (exclusive), fetched by pages."""
        return self._all("/candles", parse_candle, market, start, end)

    def predictions(
        self, market: str | None = None, start: int | None = None, end: int | None = None
    ) -> AsyncIterator[Prediction]:
        """Iterate the stored predictions."""
        return self._all("/predictions", parse_prediction, market, start, end)

    def steps(self, market: str | None = None, start: int | None = None, end: int | None = None) -> AsyncIterator[Step]:
        """Iterate the stored steps."""
        return self._all("/steps", parse_step, market, start, end)

    async def score(self, market: str | None = None, window: ScoreWindow = None, live: bool = False) -> dict[str, Any]:
        """Return the score over the last ``window`` candles, "fading", or of the whole run."""
        return await self._send(_score(market, window, live))

    async def markets(self) -> list[dict[str, Any]]:
        """Return the state of every followed market."""
        return list((await self._send(_plain("GET", "/markets")))["markets"])

    async def model(self, market: str | None = None) -> dict[str, Any]:
        """Return what the learner is and how far it has learned."""
        return await self._send(_plain("GET", "/model", market=market))

    async def operate(
        self, action: Literal["pause", "resume", "checkpoint", "rollback"], market: str | None = None
    ) -> dict[str, Any]:
        """Pause or resume training, save a checkpoint, or go back to the one before."""
        return await self._send(_plain("POST", f"/model/{action}", market=market))

    async def follow(
        self, market: str | None = None, kinds: Sequence[str] = (), after: int | None = None
    ) -> AsyncIterator[Frame]:
        """Yield frames for ever: reconnects with backoff and goes on after the last frame it saw.

        Raises ApiError when the service refuses the connection for good (key, market).
        """
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                async with connect(
                    self._stream_url(market, kinds, after), additional_headers=self._headers, close_timeout=1
                ) as socket:
                    async for text in socket:
                        wait = FIRST_WAIT_SECONDS
                        after = _last_seen(text, after)
                        frame = parse_frame(text)
                        if frame is not None:
                            yield frame
            except InvalidStatus as refused:
                response = refused.response
                if response.status_code < 500 and response.status_code != 429:
                    raise _error(response.status_code, response.headers, response.body) from None
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code == POLICY_VIOLATION:
                    raise ApiError(403, "Refused", "the service closed the connection with 1008") from None
            except (InvalidHandshake, OSError, TimeoutError):
                pass  # Away or restarting: it is tried again below.
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _stream_url(self, market: str | None, kinds: Sequence[str], after: int | None) -> str:
        query = {"market": market, "kinds": ",".join(kinds) or None, "after": after}
        base = str(self._http.base_url).rstrip("/").replace("http", "ws", 1)
        return f"{base}/ws?{urlencode({name: value for name, value in query.items() if value is not None})}"

    async def _all(
        self, path: str, parse: Callable[[Any], T], market: str | None, start: int | None, end: int | None
    ) -> AsyncIterator[T]:
        cursor: str | None = None
        query = {"market": market, "start": start, "end": end, "limit": PAGE}
        while True:
            items, cursor = await self._send(_page(path, parse, query | {"cursor": cursor}))
            for item in items:
                yield item
            if cursor is None:
                return

    async def _send(self, call: _Call[T]) -> T:
        return call.read(await self._http.send(call.request(self._http)))


def _last_seen(text: str | bytes, after: int | None) -> int | None:
    """Return the number to go on after: of this frame, or of hello when nothing was seen yet."""
    frame = json.loads(text)
    if frame["type"] == "hello" and after is not None:
        return after
    seq: int | None = frame.get("seq", after)
    return seq
