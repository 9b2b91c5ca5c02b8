"""GET /candles, /predictions, /steps, /events, /series."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from service.ports import Event, RecordBatch
from tests.builders import MARKET, START, at, make_batch, make_candle, make_prediction, make_step
from tests.service.api.conftest import World, serving

RECORDS = ["/candles", "/predictions", "/steps"]


async def pages(client: httpx.AsyncClient, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """Follow ``next`` to the end."""
    found = []
    cursor: str | None = None
    while True:
        answer = (await client.get(path, params=query | ({"cursor": cursor} if cursor else {}))).json()
        found.append(answer["items"])
        cursor = answer["next"]
        if cursor is None:
            return found


@pytest.mark.parametrize("path", RECORDS)
async def test_pages_follow_each_other_without_loss_or_doubling(
    client: httpx.AsyncClient, world: World, path: str
) -> None:
    await world.fill(25)
    found = await pages(client, path, limit=10)
    assert [len(page) for page in found] == [10, 10, 5]
    times = [row["open_time"] for page in found for row in page]
    assert times == sorted(set(times))
    assert len(times) == 25


@pytest.mark.parametrize("path", RECORDS)
async def test_start_is_inclusive_and_end_exclusive(client: httpx.AsyncClient, world: World, path: str) -> None:
    await world.fill(10)
    items = (await client.get(path, params={"start": at(2), "end": at(5)})).json()["items"]
    assert [row["open_time"] for row in items] == [at(2), at(3), at(4)]


async def test_a_page_that_ends_with_the_last_row_has_no_next(client: httpx.AsyncClient, world: World) -> None:
    await world.fill(10)
    assert [len(page) for page in await pages(client, "/candles", limit=10)] == [10]


async def test_records_are_told_with_their_own_numbers(client: httpx.AsyncClient, world: World) -> None:
    await world.fill(1)
    [candle] = (await client.get("/candles")).json()["items"]
    [prediction] = (await client.get("/predictions")).json()["items"]
    [step] = (await client.get("/steps")).json()["items"]
    assert (candle["close"], candle["source"]) == (make_candle(0).close, "live")
    assert prediction["p_down"] == make_prediction(1).p_down
    assert prediction["trend"] == {"horizon": 60, "p_up": make_prediction(1).trend.p_up}
    assert (step["loss"], step["trend_correct"]) == (make_step(0).loss, None)


@pytest.mark.parametrize("path", RECORDS)
async def test_csv_is_streamed_whole_and_reads_back_the_same_bits(
    client: httpx.AsyncClient, world: World, path: str
) -> None:
    await world.fill(4500)
    answer = await client.get(path, params={"format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 4500
    items = (await client.get(path, params={"limit": 1})).json()["items"]
    number = {"/candles": "close", "/predictions": "p_up", "/steps": "loss"}[path]
    assert float(rows[0][number]) == items[0][number]
    assert "nan" not in answer.text


async def test_csv_writes_null_as_nothing_and_stops_at_the_limit(client: httpx.AsyncClient, world: World) -> None:
    await world.fill(10)
    answer = await client.get("/steps", params={"format": "csv", "limit": 3})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 3
    assert (rows[0]["trend_correct"], rows[0]["clipped"]) == ("", "true")


async def test_a_csv_that_cannot_be_finished_is_seen_to_be_incomplete(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await world.fill(4500)
    read = world.store.steps

    async def fail_later(market: str, start: int | None, end: int | None, limit: int) -> list[Any]:
        if start is not None:
            world.store.unavailable = "gone"
        return list(await read(market, start, end, limit))

    monkeypatch.setattr(world.store, "steps", fail_later)
    async with serving(world) as address, httpx.AsyncClient() as plain:
        with pytest.raises(httpx.RemoteProtocolError):
            await plain.get(f"http://{address}/steps?format=csv")
    assert not [record for record in caplog.records if record.exc_info]


async def test_series_has_means_per_bucket(client: httpx.AsyncClient, world: World) -> None:
    await world.fill(40)
    answer = (await client.get("/series", params={"fields": "loss,accuracy", "bucket": 20, "start": START})).json()
    assert answer["bucket"] == 20
    first = answer["items"][0]
    assert first == {"open_time": START, "loss": pytest.approx(1 + 9.5 / 7), "accuracy": 0.5, "count": 20}
    assert answer["next"] is None


async def test_series_pages_too(client: httpx.AsyncClient, world: World) -> None:
    await world.fill(40)
    found = await pages(client, "/series", bucket=10, limit=3)
    assert [len(page) for page in found] == [3, 1]


async def test_series_pages_where_the_store_tells_only_a_part(
    client: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.fill(40)
    series = world.store.series

    async def two_at_most(*args: Any) -> Sequence[Any]:
        return (await series(*args))[:2]

    monkeypatch.setattr(world.store, "series", two_at_most)
    found = await pages(client, "/series", bucket=10, limit=100)
    assert [[item["count"] for item in page] for page in found] == [[10, 10], [10, 10]]


async def test_an_unknown_series_field_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.get("/series", params={"fields": "loss,secret"})
    assert answer.status_code == 422
    assert "secret" not in answer.text


async def test_events_of_one_millisecond_are_not_torn_apart_by_pages(client: httpx.AsyncClient, world: World) -> None:
    run = await world.store.open_run(MARKET, {}, START)
    events = [Event(MARKET, "gap", {"n": n}, START + n // 3) for n in range(9)]
    await world.store.write(run, RecordBatch(events=events))
    found = await pages(client, "/events", limit=4)
    assert [[row["detail"]["n"] for row in page] for page in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(
    "query",
    [
        *[
            "limit=0",
            "limit=10001",
            "limit=-1",
            "limit=x",
            "limit=1e3",
            "limit=1_0",
            "limit=%201",
            "limit=5.0",
            "limit=",
        ],
        *["start=-1", "start=9007199254740992", "start=" + "9" * 400, "end=soon", "start=%00", "end=%F0%9F%92%A9"],
        *["cursor=x", "cursor=t", "cursor=tzz", "cursor=t" + "f" * 15, "cursor=%00"],
        *["format=xml", "format=", "formats=csv", "limit=", "limit=1&limit=2", "%00=1", "LIMIT=1"],
    ],
)
async def test_a_wrong_query_is_refused(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/steps?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", [*RECORDS, "/events", "/series", "/steps?format=csv"])
async def test_without_the_database_it_answers_503(client: httpx.AsyncClient, world: World, path: str) -> None:
    world.store.unavailable = "password=hunter2 refused"
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "hunter2" not in answer.text


async def test_failures_81_a_nul_in_any_string_parameter_is_a_4xx(client: httpx.AsyncClient) -> None:
    for path in (*RECORDS, "/events", "/series", "/score", "/predict", "/model"):
        for name in ("market", "fields", "cursor", "format", "window"):
            answer = await client.get(f"{path}?{name}=a%00b")
            assert answer.status_code in (404, 422), (path, name)


async def test_rows_of_a_batch_arrive_unchanged(client: httpx.AsyncClient, world: World) -> None:
    await world.fill(3)
    items = (await client.get("/candles")).json()["items"]
    assert [row["close"] for row in items] == [candle.close for candle in make_batch(0, 3).candles]
