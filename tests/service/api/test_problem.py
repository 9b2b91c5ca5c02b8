"""Errors: always a problem, never the value, never a 500 for what a caller sent."""

from __future__ import annotations

import httpx
import pytest
import structlog

from service.api import history, score
from tests.builders import START
from tests.service.api.conftest import World

ROW = f"[{START},1,1,1,1,1]"


@pytest.mark.parametrize(
    "body",
    [
        b"NaN",
        b"",
        b"\x00",
        b"\xff\xfe\x00",
        b"{" * 5000,
        b"[" * 100_000,
        b'{"candles":' + b"[" * 100_000,
        b'{"candles":[' + b"1," * 400_000 + b"1]}",
        b'{"candles":1e999}',
        b'{"candles":Infinity}',
        b'{"market":"\\ud800","candles":[]}',
        b'{"market":"a\\u0000b","candles":[' + f"{ROW},{ROW}".encode() + b"]}",
        b'{"candles":[[' + b"9" * 5000 + b",1,1,1,1,1],[]]}",
        b'{"candles":[[9007199254740993,1,1,1,1,1],[1,1,1,1,1,1]]}',
        b'{"candles":[[1,NaN,1,1,1,1],[2,1,1,1,1,1]]}',
        b'{"candles":[[1,1e400,1,1,1,1],[2,1,1,1,1,1]]}',
        b'{"candles":[[1,-Infinity,1,1,1,1],[2,1,1,1,1,1]]}',
        b'{"candles":[[1,1e308,1e309,1,1,1],[2,1,1,1,1,1]]}',
        b'{"candles":{"0":[1,2,3,4,5,6]}}',
        b'{"candles":[{},{}]}',
        b'{"candles":[[],[]]}',
        b'{"candles":[null,null]}',
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_failures_51_a_body_that_is_no_request_is_a_4xx_without_the_value(
    client: httpx.AsyncClient, body: bytes
) -> None:
    answer = await client.post("/predict", content=body)
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/problem+json"
    for word in ("NaN", "Infinity", "1e400", "999999", "ud800", "9007199254740993"):
        assert word not in answer.text
    assert len(answer.content) < 1000


async def test_nothing_at_a_path_is_a_problem(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nothing-here")
    assert answer.status_code == 404
    assert answer.json()["title"] == "Not Found"
    assert "nothing-here" not in answer.text


async def test_a_wrong_method_is_a_problem_and_names_the_right_ones(client: httpx.AsyncClient) -> None:
    answer = await client.delete("/predict")
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("path", ["/openapi.json", "/static/", "/static/no-such-file", "/docs", "/", "/metrics"])
async def test_a_wrong_method_names_the_right_ones_also_where_no_route_of_the_api_is(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_failures_67_a_bug_is_a_500_with_request_id_and_cors_headers_and_is_logged(
    client: httpx.AsyncClient, world: World
) -> None:
    world.set(allowed_origins=("https://page.example",))
    world.market.failure = RuntimeError("secret detail")
    with structlog.testing.capture_logs() as logs:
        answer = await client.get("/model", headers={"Origin": "https://page.example"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in answer.text
    [failed] = [line for line in logs if line["log_level"] == "error"]
    assert (failed["event"], failed["route"]) == ("request failed", "/model")


async def test_every_answer_has_its_own_request_id(client: httpx.AsyncClient) -> None:
    ids = {(await client.get("/markets")).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("/steps?cursor=x", "query.cursor: the `next` of the page before is needed"),
        ("/series?fields=loss,prices", "query.fields: a comma list of: loss, accuracy,"),
        ("/score?window=0", "query.window: a whole number from 1 to 14400, `fading` or `all`, is needed"),
        ("/steps?limit=1e3", "query.limit: a whole number is needed"),
        ("/score?live=1", "query.live: true or false is needed"),
    ],
)
async def test_a_wrong_parameter_is_explained_in_words(client: httpx.AsyncClient, query: str, says: str) -> None:
    answer = await client.get(query)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(says)


def test_no_documented_pattern_is_left_to_pydantic_to_explain() -> None:
    """Its message would quote the pattern: every parameter that has one has a sentence too."""
    explained = {history.CURSOR, history.FIELDS, score.WINDOW}
    calls = [call for path in World().app.openapi()["paths"].values() for call in path.values()]
    schemas = [parameter["schema"] for call in calls for parameter in call.get("parameters", ())]
    assert {schema["pattern"] for schema in schemas if "pattern" in schema} == explained
