"""The OpenAPI document: what FastAPI makes of the routes, completed by examples, problems and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from service.api.examples import EXAMPLES
from service.api.guard import OPEN_PATHS
from service.api.schemas import ProblemOut

DESCRIPTION = """\
Watches a live market, predicts the next candle, learns from each candle as it closes.

Times are UTC milliseconds. Errors are `application/problem+json` (RFC 9457). An unknown or repeated query parameter is
refused. Frames as they happen: the WebSocket `/ws?market=&kinds=prediction,step,event&after=SEQ`.
"""


def complete_document(app: FastAPI, keyed: bool) -> None:
    """Let the application's ``openapi`` return the complete document; with ``keyed``, keys are asked for."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(make(), keyed)
        return app.openapi_schema or make()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any], keyed: bool) -> None:
    schemas = document["components"]["schemas"]
    schemas["ProblemOut"] = ProblemOut.model_json_schema(ref_template="#/components/schemas/{model}")
    for call in _calls(document):
        # An operation is called by its first sentence, not by the name of its function.
        call["summary"] = call["description"].partition(".")[0]
        _drop_null_parameters(call)
        _give_example(call)
    if keyed:
        _require_keys(document)


def _calls(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for calls in document["paths"].values():
        yield from calls.values()


def _drop_null_parameters(call: dict[str, Any]) -> None:
    """A query parameter may be left out, but there is no way to write null in one."""
    for parameter in call.get("parameters", ()):
        kept = [schema for schema in parameter["schema"].pop("anyOf", ()) if schema != {"type": "null"}]
        parameter["schema"].update(kept[0] if kept else {})


def _give_example(call: dict[str, Any]) -> None:
    content = call["responses"]["200"]["content"].get("application/json")
    if content is not None:
        content["example"] = EXAMPLES[content["schema"]["$ref"].rpartition("/")[2]]


def _require_keys(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    document["security"] = [{"bearer": []}, {"key": []}]
    for path, calls in document["paths"].items():
        if path in OPEN_PATHS:
            for call in calls.values():
                call["security"] = []
