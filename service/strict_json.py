"""Strict JSON: how what leaves the service and what is stored are encoded, and how what enters is decoded."""

from __future__ import annotations

import json
from typing import Any

import orjson


class InvalidJSON(ValueError):
    """The bytes were not strict JSON (also NaN, Infinity, 1e999, lone surrogates, deeper than 1,024 levels)."""


def encode(value: Any) -> bytes:
    """Encode records, containers and numpy numbers; a number that is not finite becomes null, never NaN."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_exactly(value: object, sort_keys: bool = False) -> str:
    """Encode plain values for keeping, as ASCII; raises ValueError for a number that is not finite.

    Unlike ``encode`` it takes any text and integer that Python has: what is stored must not fail on a strange one.
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


def decode(data: bytes | str) -> Any:
    """Decode strict JSON, or raise InvalidJSON without quoting the input."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # orjson's message names the position only, but its exception carries the document: do not chain it.
        raise InvalidJSON(str(error)) from None
