"""Disturber: what faults do to the frames of candles on their way out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.simulator.faults import Fault, FaultBook

Frame = dict[str, Any]
_OLD = 3


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A frame on its way: ``stream`` None goes to every session."""

    stream: str | None
    data: str | bytes
    delay_ms: int = 0


class Disturber:
    """Keeps, drops, doubles, spoils and reorders frames as the fault book says."""

    def __init__(self, book: FaultBook) -> None:
        self._book = book
        self._skip = self._no_final = 0
        self._twice = self._reorder = self._again_old = False
        self._bad: list[Fault] = []
        self._late: list[Outgoing] = []
        self._held: list[Outgoing] = []
        self._finals: deque[Outgoing] = deque(maxlen=_OLD)

    def begin(self, fault: Fault) -> list[Outgoing]:
        """Take a one-time fault; returns what has to be sent at once because of it."""
        match fault.kind:
            case "skip":
                self._skip = max(self._skip, fault.option("count", 1))
            case "no_final":
                self._no_final = max(self._no_final, fault.option("count", 1))
            case "duplicate":
                self._twice = True
            case "reorder":
                self._reorder = True
            case "old_final":
                self._again_old = True
            case "bad_price":
                self._bad.append(fault)
            case "malformed":
                return [Outgoing(None, senseless(str(fault.options.get("text", "json"))))]
        return []

    def partial(self, stream: str, frame: Frame, now_ms: float) -> list[Outgoing]:
        """Return what goes out for a frame of a candle still open."""
        if self._skip or self._active("stall", now_ms):
            return []
        return self._pass([Outgoing(stream, json.dumps(frame))], now_ms)

    def final(self, stream: str, frame: Frame, now_ms: float) -> list[Outgoing]:
        """Return what goes out for a closed candle's frame."""
        out = Outgoing(stream, json.dumps(self._spoiled(frame)))
        self._finals.append(out)
        if self._skip or self._no_final:
            self._skip, self._no_final = max(0, self._skip - 1), max(0, self._no_final - 1)
            return []
        if self._active("stall", now_ms):
            return []
        if self._reorder:
            self._reorder = False
            self._late.append(out)
            return []
        frames = [out, *self._late]
        self._late = []
        frames += [out] if self._flag("_twice") else []
        frames += [self._finals[0]] if self._flag("_again_old") else []
        return self._pass(frames, now_ms)

    def release(self, now_ms: float) -> list[Outgoing]:
        """Return the frames whose holding back is over."""
        if not self._held or self._active("burst", now_ms):
            return []
        frames, self._held = self._held, []
        return frames

    def _pass(self, frames: list[Outgoing], now_ms: float) -> list[Outgoing]:
        if self._active("burst", now_ms):
            self._held.extend(frames)
            return []
        delay = self._active("delay", now_ms)
        if delay is None:
            return frames
        return [Outgoing(frame.stream, frame.data, delay.option("ms", 1_500)) for frame in frames]

    def _spoiled(self, frame: Frame) -> Frame:
        if not self._bad:
            return frame
        value = self._bad.pop(0).options.get("value", "NaN")
        return {**frame, "k": {**frame["k"], "c": value}}

    def _flag(self, name: str) -> bool:
        value = bool(getattr(self, name))
        setattr(self, name, False)
        return value

    def _active(self, kind: str, now_ms: float) -> Fault | None:
        return self._book.active(kind, now_ms)


_SENSELESS: dict[str, Callable[[], str | bytes]] = {
    "json": lambda: '{"e":"kline","E":1,',
    "nan": lambda: '{"e":"kline","k":{"t":NaN}}',
    "bare": lambda: "hello",
    "array": lambda: "[1,2,3]",
    "no_k": lambda: '{"e":"kline","E":1,"s":"ETHUSDT"}',
    "deep": lambda: "[" * 20_000 + "]" * 20_000,
    "empty": lambda: "{}",
    "null": lambda: "null",
    "binary": lambda: b"\xff\xfe\x00\x01",
    "huge": lambda: '{"e":"' + "x" * 11_000_000 + '"}',
}


def senseless(name: str) -> str | bytes:
    """Return a frame that no client can make sense of."""
    return _SENSELESS.get(name, _SENSELESS["json"])()
