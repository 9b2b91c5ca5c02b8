"""Faults: what goes wrong at the simulated exchange, and when."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.ports import ConfigurationError

KINDS: dict[str, str] = {
    # the socket's connection
    "drop": "cut every socket; how: rst, fin, 1000 or 1001 (close frame)",
    "shutdown_notice": "send Binance's serverShutdown event, then close with 1001",
    "stall": "sockets stay open and answer pings, but bring no data",
    "zombie": "sockets open now, or dialled meanwhile, never bring data again",
    "black_hole": "sockets bring nothing and answer no ping; new handshakes hang",
    "ws_status": "handshakes are answered with status (503, 451, 429 ...); retry_after in seconds where given",
    "ws_hang": "handshakes are not answered",
    "subscribe_refused": "SUBSCRIBE is answered with an error",
    # the socket's frames
    "malformed": "one senseless frame; text: json, nan, bare, array, no_k, deep, empty, null, binary, huge",
    "duplicate": "the final frame comes twice",
    "old_final": "the final frame of three candles ago comes again",
    "reorder": "the next candle's frames come before this one's final",
    "skip": "no frames for count candles",
    "no_final": "no final frames for count candles",
    "bad_price": "the final frame's close is value (NaN, inf, 0, -1, empty, null, abc)",
    "delay": "frames come ms later",
    "burst": "frames are held back, then come all at once",
    # REST
    "rest_status": "every answer is status with Binance's error code; retry_after in seconds where given",
    "rest_stall": "no answer",
    "rest_text": "klines answer 200 with text: truncated, html, object or list (empty)",
    "rest_doubled": "klines rows come twice and unsorted",
    "rest_bad_rows": "every fifth klines row is senseless",
    "rest_missing": "every third klines row is left out",
    "rest_lag": "klines answers are ms old",
    "time_off": "serverTime is off by ms",
    # the exchange itself
    "down": "the port is closed",
    "cut": "nothing is answered at all, sockets or REST, as with a pulled cable",
    "erase": "the exchange has no candles for count seconds",
    "correct": "the candle of back seconds ago is changed; push: also sent as a frame",
    "shift": "the exchange's clock jumps by ms",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: from ``at_ms`` (exchange's time since its start) for ``lasts_ms``; 0: once."""

    kind: str
    at_ms: int
    lasts_ms: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def option(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


class FaultBook:
    """The faults of one exchange; times are milliseconds since its start."""

    def __init__(self, faults: list[Fault] | None = None) -> None:
        self._lasting: list[Fault] = []
        self._once: list[Fault] = []
        self.history: list[Fault] = []
        for fault in faults or []:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        (self._lasting if fault.lasts_ms else self._once).append(fault)

    def active(self, kind: str, now_ms: float) -> Fault | None:
        """Return the lasting fault of this kind that is on now."""
        for fault in self._lasting:
            if fault.kind == kind and fault.at_ms <= now_ms < fault.at_ms + fault.lasts_ms:
                return fault
        return None

    def take(self, now_ms: float) -> list[Fault]:
        """Return the one-time faults that have become due, each only once, in order."""
        due = sorted((fault for fault in self._once if fault.at_ms <= now_ms), key=lambda fault: fault.at_ms)
        self._once = [fault for fault in self._once if fault.at_ms > now_ms]
        self.history.extend(due)
        return due

    def waiting(self, now_ms: float) -> list[Fault]:
        """Return what is still to come or still on."""
        return [*self._once, *(fault for fault in self._lasting if fault.at_ms + fault.lasts_ms > now_ms)]


def read_plan(path: Path) -> list[Fault]:
    """Read a JSON plan: ``{"faults": [{"kind": "drop", "at_seconds": 10, "seconds": 0, ...}]}``."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: not JSON ({error})") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: nested too deeply") from None
    items = plan.get("faults") if isinstance(plan, dict) else plan
    if not isinstance(items, list):
        raise ConfigurationError(f'{path}: a plan is {{"faults": [...]}}')
    return [read_fault(item, f"{path}: fault {number}") for number, item in enumerate(items, 1)]


def read_fault(item: object, where: str, from_ms: float = 0.0) -> Fault:
    """Read one fault of a plan; ``at_seconds`` counts from ``from_ms``."""
    if not isinstance(item, dict):
        raise ConfigurationError(f"{where}: not an object")
    options = dict(item)
    kind, at, seconds = options.pop("kind", None), options.pop("at_seconds", 0), options.pop("seconds", 0)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigurationError(f"{where}: unknown kind {kind!r}; known are {', '.join(KINDS)}")
    if not all(_is_number(value, 0, 1e9) for value in (at, seconds)):
        raise ConfigurationError(f"{where}: at_seconds and seconds are numbers from 0 on")
    known = {*_OPTIONS.get(kind, ()), *({"retry_after"} if kind == "ws_status" else ())}
    if unknown := sorted(set(options) - known):
        raise ConfigurationError(f"{where}: {kind} has no {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}")
    for name, value in options.items():
        _check_option(kind, name, value, where)
    return Fault(kind, int(from_ms + at * 1_000), int(seconds * 1_000), options)


def _check_option(kind: str, name: str, value: object, where: str) -> None:
    """Raise ConfigurationError for a value that the fault cannot have."""
    if name in ("how", "text"):
        words = _OPTIONS[kind][name]
        good, right = value in words, f"one of {', '.join(words)}"
    elif name in _RANGES:
        low, high = _RANGES[name]
        empty = name == "retry_after" and value is None
        good = empty or (isinstance(value, int) and _is_number(value, low, high))
        right = f"a whole number from {low} to {high}"
    elif name == "push":
        good, right = isinstance(value, bool), "true or false"
    else:
        good, right = (
            value is None or isinstance(value, str) or _is_number(value, -1e300, 1e300),
            "text, number or null",
        )
    if not good:
        raise ConfigurationError(f"{where}: {kind}'s {name} is {right}, not {value!r:.40}")


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def random_plan(seed: int, seconds: int) -> list[Fault]:
    """Make a plan that follows from ``seed`` alone, over all kinds, with a quiet end to recover in."""
    dice = random.Random(seed)
    faults: list[Fault] = []
    at = dice.uniform(2, 6)
    while at < seconds:
        kind = dice.choice(list(KINDS))
        fault = _example(kind, dice, int(at * 1_000))
        faults.append(fault)
        at += fault.lasts_ms / 1_000 * dice.choice((0.3, 1.0, 1.0)) + dice.uniform(0.5, 8)
    return faults


def _example(kind: str, dice: random.Random, at_ms: int) -> Fault:
    """Make one fault of a kind, as hard as a rehearsal wants it."""
    lasting = kind in _LASTING
    lasts_ms = int(dice.uniform(1, 12) * 1_000) if lasting else 0
    choices = _OPTIONS.get(kind, {})
    return Fault(kind, at_ms, lasts_ms, {name: dice.choice(values) for name, values in choices.items()})


_LASTING = frozenset(
    {"stall", "zombie", "black_hole", "ws_status", "ws_hang", "subscribe_refused", "delay", "burst", "down", "cut"}
    | {kind for kind in KINDS if kind.startswith("rest_") or kind == "time_off"}
)
_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "drop": {"how": ("rst", "fin", "1000", "1001")},
    "ws_status": {"status": (503, 451, 429, 403)},
    "malformed": {"text": ("json", "nan", "bare", "array", "no_k", "deep", "empty", "null", "binary", "huge")},
    "skip": {"count": (1, 2, 5, 12)},
    "no_final": {"count": (1, 3)},
    "bad_price": {"value": ("NaN", "inf", "0", "-1", "", None, "abc")},
    "delay": {"ms": (300, 1_500, 4_000)},
    "rest_status": {"status": (418, 429, 451, 403, 500, 502, 503, 504), "retry_after": (None, 1, 2)},
    "rest_text": {"text": ("truncated", "html", "object", "list")},
    "rest_lag": {"ms": (500, 2_000, 5_000)},
    "time_off": {"ms": (3_600_000, -3_600_000, 4_000)},
    "erase": {"count": (1, 3, 20, 70)},
    "correct": {"back": (1, 5, 30), "push": (True, False)},
    "shift": {"ms": (5_000, -4_000)},
}
_DAY_SECONDS = 86_400
_RANGES = {
    "status": (200, 599),
    "retry_after": (0, _DAY_SECONDS),
    "count": (1, _DAY_SECONDS),
    "back": (0, _DAY_SECONDS),
    "ms": (-_DAY_SECONDS * 1_000, _DAY_SECONDS * 1_000),
}
