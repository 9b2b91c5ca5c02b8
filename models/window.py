"""Window: the last consecutive candles as the features see them; a gap empties it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from models.candle import Candle
from models.features import Features, features
from models.tape import Tape


class Window:
    """Follows the candles of one market. ``age`` counts the candles since the last gap."""

    def __init__(self, interval_ms: int, tick: float | None) -> None:
        self.interval_ms, self.tick = interval_ms, tick
        self.tape = Tape(tick)
        self.last: Candle | None = None

    @property
    def age(self) -> int:
        """How many consecutive candles it holds."""
        return self.tape.age

    def add(self, candle: Candle) -> Features:
        """Append the next candle and compute its features; one that does not follow empties the window first.

        Raises ValueError for a candle that is not later than the last one.
        """
        self.follow(candle)
        return features(self.tape)

    def follow(self, candle: Candle) -> None:
        """Append the next candle as ``add`` does, without computing its features."""
        if self.last is not None and candle.open_time <= self.last.open_time:
            raise ValueError(f"candle {candle.open_time} is not later than {self.last.open_time}")
        if not self.follows(candle):
            self.tape = Tape(self.tick)
        self.tape.add(candle)
        self.last = candle

    def follows(self, candle: Candle) -> bool:
        """Tell whether the candle is the one right after the last."""
        return self.last is not None and candle.open_time == self.last.open_time + self.interval_ms

    def state_dict(self) -> dict[str, Any]:
        """Give the tape and the last candle as plain values."""
        return {"tape": self.tape.state_dict(), "last": None if self.last is None else asdict(self.last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the window that gave the state."""
        self.tape = Tape(self.tick)
        self.tape.load_state_dict(state["tape"])
        self.last = None if state["last"] is None else Candle(**state["last"])
