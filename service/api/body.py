"""Reading a request body with a limit on its size and on its time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from service.api.problem import Problem

# What is left of the body is not read, so the connection cannot be used again.
_CLOSE = {"Connection": "close"}


def too_large(limit: int) -> Problem:
    """The answer to a body above ``limit`` bytes."""
    return Problem(413, "Body too large", f"The body is larger than {limit} bytes.", headers=_CLOSE)


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Read the whole body, also a chunked one, but no further than ``limit`` bytes and no longer than ``seconds``."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        detail = f"The body did not arrive within {seconds:g} s."
        raise Problem(408, "Body too slow", detail, headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem(400, "Body incomplete", "The connection was closed before the body was complete.") from None
    return b"".join(chunks)
