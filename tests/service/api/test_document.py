"""The OpenAPI document: every answer has an example that is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

from service.api.examples import EXAMPLES
from service.ports import Event
from tests.builders import MARKET, START
from tests.service.api.conftest import World
from tests.service.api.test_predict import rows

DOCUMENT = World().app.openapi()


def answers() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """List (method, path, status, response) of everything documented."""
    for path, calls in DOCUMENT["paths"].items():
        for method, call in calls.items():
            for status, response in call["responses"].items():
                yield method.upper(), path, status, response


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": DOCUMENT["components"]}


def test_every_json_answer_has_an_example_that_fits_its_schema() -> None:
    checked = 0
    for *where, response in answers():
        for kind, content in response["content"].items():
            if kind.endswith("json"):
                jsonschema_rs.validate(resolved(content["schema"]), content["example"])
                checked += 1
                assert content["example"], where
    assert checked > 100


def test_every_operation_documents_the_answers_any_route_can_give() -> None:
    for path, calls in DOCUMENT["paths"].items():
        for method, call in calls.items():
            assert {"200", "400", "401", "403", "413", "429", "431", "500"} <= call["responses"].keys(), (method, path)


def test_the_version_is_the_services() -> None:
    assert DOCUMENT["info"]["version"] == "1.2.3"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [(method, path, status) for method, path, status, _ in answers() if status == "200" and path != "/model/rollback"],
)
async def test_a_real_answer_has_the_members_of_the_example(
    client: httpx.AsyncClient, world: World, method: str, path: str, status: str
) -> None:
    await world.fill(3)
    world.store.stored_events.append(Event(MARKET, "gap", {"seconds": 3.2}, START))
    answer = await client.request(method, path, json={"candles": rows()} if (method, path) == PREDICT else None)
    assert answer.status_code == int(status)
    content = DOCUMENT["paths"][path][method.lower()]["responses"][status]["content"]
    if "application/json" not in content:
        return
    schema, example = content["application/json"]["schema"], content["application/json"]["example"]
    jsonschema_rs.validate(resolved(schema), answer.json())
    # The fake learner describes less of itself and has other members in its mixture than the real one.
    if path not in ("/model", "/health/ready"):
        assert shape(answer.json()) == shape(example)


PREDICT = ("POST", "/predict")
FREE = {"weights", "detail", "baselines", "skill", "model", "rejected"}


def shape(value: Any) -> Any:
    """Keep the names of the members, to the depth where names are fixed; lists by their first item."""
    if isinstance(value, dict):
        return {name: None if name in FREE else shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return None


def test_every_example_is_used() -> None:
    names = {
        content["schema"]["$ref"].rpartition("/")[2]
        for *_, response in answers()
        for kind, content in response["content"].items()
        if kind == "application/json"
    }
    assert names == set(EXAMPLES)
