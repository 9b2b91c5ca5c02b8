"""What went wrong when the exchange was asked, in the one form that the feed acts on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LOCATION = re.compile(r"\b451\b|restricted location", re.IGNORECASE)
_FORBIDDEN = re.compile(r"\b403\b")
_LIMITED = re.compile(r"\b(418|429)\b")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One failed call. ``refused``: the exchange does not want us (451, 403), asking again soon is pointless."""

    text: str
    refused: bool = False
    limited: bool = False
    retry_after_seconds: float | None = None


def read_trouble(error: BaseException, headers: Mapping[str, str] | None = None) -> Trouble:
    """Read ccxt's (or aiohttp's) error; ``headers`` are those of the answer, if there was one."""
    raw = f"{type(error).__name__} {error}"
    # ccxt puts the URL into the text; its host and numbers are not the status.
    told = re.sub(r"\w+://\S+", "", raw)
    if _LOCATION.search(told):
        return Trouble("the exchange refuses this location (HTTP 451)", refused=True)
    if _FORBIDDEN.search(told):
        return Trouble("the exchange refuses access (HTTP 403)", refused=True)
    if limited := _LIMITED.search(told):
        text = f"the exchange limits our requests (HTTP {limited[1]})"
        return Trouble(text, limited=True, retry_after_seconds=_retry_after(headers))
    return Trouble(_short(raw))


def _retry_after(headers: Mapping[str, str] | None) -> float | None:
    for name, value in (headers or {}).items():
        if name.lower() == "retry-after":
            try:
                return max(0.0, float(value))
            except ValueError:
                return None
    return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."
