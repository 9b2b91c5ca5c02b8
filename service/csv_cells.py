"""How records stand in CSV, the same in answers, exports and replays: one column per field, ``trend`` made flat."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any

from models.candle import Candle
from models.records import Prediction, Step, Trend
from service.strict_json import encode

RECORDS: dict[str, type] = {"candles": Candle, "predictions": Prediction, "steps": Step}


def columns(record_type: type) -> tuple[str, ...]:
    """Return the names of a record's columns, in order."""
    return tuple(path.replace(".", "_") for path in _paths(record_type))


def values(record: Any) -> tuple[Any, ...]:
    """Return a record's values in the order of its columns."""
    return _GETTERS[type(record)](record)


def cells(record: Any) -> list[str]:
    """Return a record's values as the texts of one row."""
    return [cell(value) for value in values(record)]


def cell(value: Any) -> str:
    """Write floats so that they read back as the same bits, truth as in JSON, null and not finite as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool | dict | float):
        text = encode(value).decode()
        return "" if text == "null" else text
    return str(value)


def _paths(record_type: type) -> list[str]:
    paths: list[str] = []
    for field in fields(record_type):
        flat = field.name == "trend"
        paths += [f"trend.{part.name}" for part in fields(Trend)] if flat else [field.name]
    return paths


_GETTERS: dict[type, attrgetter[tuple[Any, ...]]] = {kind: attrgetter(*_paths(kind)) for kind in RECORDS.values()}
