"""The one JSON encoder of everything that leaves the service, and the one decoder of what enters it."""

from __future__ import annotations

from typing import Any

import orjson


class InvalidJSON(ValueError):
    """The bytes were not strict JSON (also NaN, Infinity, 1e999, lone surrogates, deeper than 1,024 levels)."""


def encode(value: Any) -> bytes:
    """Encode records, containers and numpy numbers; a number that is not finite becomes null, never NaN."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def decode(data: bytes | str) -> Any:
    """Decode strict JSON, or raise InvalidJSON without quoting the input."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # orjson's message names the position only, but its exception carries the document: do not chain it.
        raise InvalidJSON(str(error)) from None
