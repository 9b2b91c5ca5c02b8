"""What went wrong when the exchange was asked, in the one form that the feed acts on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_LOCATION = re.compile(r"\b451\b|restricted location", re.IGNORECASE)
_FORBIDDEN = re.compile(r"\b403\b")
_LIMITED = re.compile(r"\b(418|429)\b")
# Of a URL: a proxy's user and password; the query, which is signed where the account's keys are set.
_SECRETS = re.compile(r"(?<=://)[^/@\s]+@|(?<=\S)\?\S+=\S*")
_LONGEST_SECONDS = 3 * 86_400  # Binance's longest ban


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
    """Read ``Retry-After``, seconds or a date; the answer's own ``Date`` says when it was written."""
    told = {name.lower(): value for name, value in (headers or {}).items()}
    if "retry-after" not in told:
        return None
    try:
        seconds = float(told["retry-after"])
    except ValueError:
        until, since = _date(told["retry-after"]), _date(told.get("date"))
        seconds = (until - (since or datetime.now(UTC))).total_seconds() if until else math.nan
    return min(max(0.0, seconds), _LONGEST_SECONDS) if math.isfinite(seconds) else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _short(text: str) -> str:
    line = _SECRETS.sub("", " ".join(text.split()))
    return line if len(line) <= 200 else line[:197] + "..."
