"""Ready-made JSON responses, and the parsing of numbers in queries."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from starlette.responses import Response

from service.strict_json import encode

LAST_TIME = 2**53 - 1
_WHOLE = re.compile(r"-?[0-9]{1,16}")


def json_response(body: Any, status: int = 200) -> Response:
    """Encode a body strictly and answer with it."""
    return Response(encode(body), status, media_type="application/json")


def whole(value: Any) -> int:
    """Parse a decimal whole number and nothing more lenient (no 1e3, 1_000, 5.0, blanks)."""
    if not (isinstance(value, str) and _WHOLE.fullmatch(value)):
        raise ValueError("a whole number is needed")
    return int(value)


def flag(value: Any) -> bool:
    """Parse `true` or `false`."""
    if value not in ("true", "false"):
        raise ValueError("true or false is needed")
    return bool(value == "true")


def written_as(pattern: str, sentence: str) -> BeforeValidator:
    """Take only text that matches ``pattern``, and say ``sentence`` of any other: a pattern is no explanation."""
    wanted = re.compile(pattern)

    def check(value: Any) -> str:
        if not (isinstance(value, str) and wanted.fullmatch(value)):
            raise ValueError(sentence)
        return value

    return BeforeValidator(check)


# Bounds and patterns stand before the parser: behind it they would be missing from the API's documentation.
Time = Annotated[int, Field(ge=0, le=LAST_TIME), BeforeValidator(whole)]
Flag = Annotated[bool, BeforeValidator(flag)]
