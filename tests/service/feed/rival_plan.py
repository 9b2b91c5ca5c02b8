"""What goes wrong at the rival exchange, drawn at random."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

BODIES = (
    "html", "truncated", "binary", "charset", "gzip", "null", "{}", "[]", '"text"', "7", "true", "[[]]", "[null]",
    '[{"t":1}]', "[[1,2,3]]", "error200", "unordered", "reversed", "doubled", "gappy", "nan", "short_rows",
    "text_times", "numbers", "middle",
)  # fmt: skip
STATUSES: tuple[tuple[int, str, str | None], ...] = (
    (500, '{"code":-1000,"msg":"An unknown error"}', None),
    (502, "<html>Bad Gateway</html>", None),
    (503, "", None),
    (503, "<html>maintenance</html>", None),
    (504, '{"code":-1007,"msg":"Timeout"}', None),
    (520, "<html>cloud</html>", None),
    (429, '{"code":-1003,"msg":"Too much request weight"}', "seconds"),
    (429, '{"code":-1003,"msg":"Too much request weight"}', "date"),
    (429, "", None),
    (429, "", "nonsense"),
    (429, "", "-5"),
    (418, '{"code":-1003,"msg":"Way too much"}', "seconds"),
    (418, '{"code":-1003,"msg":"Way too much"}', "date"),
    (403, "<html>WAF</html>", None),
    (451, '{"code":0,"msg":"Service unavailable from a restricted location"}', None),
    (400, '{"code":-1100,"msg":"Illegal characters"}', None),
    (404, "<html>nothing</html>", None),
    (200, '{"code":-1003,"msg":"Too much"}', None),
)


LONG_AGO = 1_790_000_000_000


def _kline(s: Any = "ETHUSDT", i: Any = "1s", **k: Any) -> str:
    told = {"t": LONG_AGO, "o": "1", "h": "1", "l": "1", "c": "1", "v": "1", "x": True, **k}
    return json.dumps({"e": "kline", "s": s, "k": {"s": s, "i": i, **told}})


JUNK = (
    "no json", "{", "[]", "[1]", '"text"', "null", "{}", "7", "\0\1\2", "[" * 5_000, "x" * 200_000,
    '{"e":"kline"}', '{"e":"kline","k":null}', '{"e":"kline","k":{}}', '{"e":"kline","k":[]}',
    _kline(s="BTCUSDT"), _kline(s=5), _kline(i="1m"), _kline(t=None), _kline(t=4_102_444_800_000), _kline(t=1_000),
    _kline(t=str(LONG_AGO)), _kline(t=LONG_AGO + 500), _kline(o="NaN"), _kline(o=float("inf")), _kline(c=None),
    _kline(c="0"), _kline(v="-1"), _kline(h="0.5"), _kline(x="true"), _kline(o={}),
    '{"e":"trade","s":"ETHUSDT"}', '{"e":"bookTicker"}', '{"e":"serverShutdown","E":1}', '{"error":"text"}',
    '{"status":500}', '{"error":{"code":5}}', '{"result":null,"id":1}', '{"id":99,"result":[]}', '{"ping":1}',
    '{"stream":"x","data":null}',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ill:
    """One trouble, from ``start`` to ``end`` in seconds since the exchange's start."""

    kind: str
    start: float
    end: float
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def number(self, name: str) -> float:
        return float(self.options[name])


@dataclass(frozen=True, slots=True)
class Plan:
    ills: tuple[Ill, ...]
    clock_off_ms: float = 0.0

    def of(self, kind: str) -> list[Ill]:
        return [ill for ill in self.ills if ill.kind == kind]

    def now(self, kind: str, at: float) -> Ill | None:
        return next((ill for ill in self.ills if ill.kind == kind and ill.start <= at < ill.end), None)

    @property
    def end(self) -> float:
        return max((ill.end for ill in self.ills), default=0.0)


def draw(seed: int, seconds: float, count: int, longest: float = 72.0) -> Plan:
    """Draw ``count`` troubles that begin within ``seconds`` and last no longer than ``longest``."""
    chance = random.Random(seed)
    drawn = [_one(chance, chance.uniform(-2, seconds)) for _ in range(count)]
    ills = [ill for ill in drawn if ill.end - ill.start <= longest]
    off = chance.choice((0.0, 0.0, 0.0, 600_000.0, -600_000.0, 3_000.0))
    return Plan(tuple(sorted(ills, key=lambda ill: ill.start)), off)


def _one(chance: random.Random, start: float) -> Ill:
    lasts = chance.choice((1.0, 3.0, 6.0, 12.0, 20.0))
    kind = chance.choice(KINDS)
    options: dict[str, Any] = {}
    match kind:
        case "rest_slow":
            options = {"seconds": chance.choice((0.5, 2, 5, 7))}
        case "rest_status" | "ws_status":
            status, body, retry = chance.choice(STATUSES)
            if kind == "ws_status" and status == 200:
                status = 503
            options = {"status": status, "body": body, "retry": retry}
        case "rest_body":
            options = {"how": chance.choice(BODIES)}
        case "info":
            options = {"seconds": 1.0, **({"status": 503} if chance.random() < 0.5 else {})}
        case "time":
            how = chance.choice(("missing", "text", "off"))
            options = {"how": how, "ms": chance.choice((-600_000, 600_000, 4_000))}
        case "rest_old":
            options = {"ms": chance.choice((1_500, 5_000, 30_000))}
        case "subscribe":
            options = {"how": chance.choice(("error", "error5", "nothing", "close", "unacked"))}
        case "late":
            options = {"seconds": chance.choice((1.5, 5, 30))}
        case "drop":
            options = {"code": chance.choice((0, 0, 1000, 1001, 1008, 1011, 1012, 1013))}
        case "half_frame":
            options = {"cut": chance.random() < 0.5}
        case "erase":
            options = {"count": chance.choice((1, 5, 70))}
            lasts = options["count"] + 2.0
        case "correct":
            options = {"back": chance.choice((1, 2, 10, 60))}
        case "clock_jump":
            options = {"ms": chance.choice((-3_000, 4_000, 90_000))}
        case "style":
            options = {"how": chance.choice(("exponent", "numbers", "extra", "combined"))}
    return Ill(kind, start, start + lasts, options)


KINDS = (
    "rest_slow", "rest_hang", "rest_reset", "rest_status", "rest_status", "rest_body", "rest_body", "rest_short",
    "rest_older", "rest_no_running", "rest_old", "info", "time", "blackout", "dead", "ws_hang", "ws_reset", "ws_status",
    "ws_deaf", "no_pong", "subscribe", "subscribe", "no_partials", "no_finals", "frames_gone", "late", "burst", "swap",
    "twice", "contradict", "early", "old_again", "style", "silent", "junk", "drop", "drop", "half_frame", "bad_frame",
    "deafen", "ping", "erase", "correct", "clock_jump",
)  # fmt: skip
