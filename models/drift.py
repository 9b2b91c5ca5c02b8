"""Drift: tell when the model has become worse against a simple baseline than it used to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WARM_UP = 3_600
MEMORY = 20_000
SLACK = 0.02
BET = 0.3
CUT = 1.0
ALARM = 604_800.0


@dataclass(slots=True)
class Drift:
    """A Shiryaev-Roberts e-detector on excess loss, loss minus baseline loss (Shin, Ramdas & Rinaldo 2024).

    While the excess stays no more than SLACK nats above its usual mean, false alarms come at least ALARM candles apart
    on average: one a week of seconds. Volatility moves both losses and not their difference.
    """

    candles: int = 0
    usual: float = 0.0  # mean excess so far
    evidence: float = 0.0

    def add(self, excess: float) -> bool:
        """Take the next candle's excess loss in nats; True when a drift is found, and then start anew."""
        cut = max(-CUT, min(CUT, excess))
        if self.candles >= WARM_UP:
            self.evidence = (self.evidence + 1) * max(0.0, 1 + BET * (cut - self.usual - SLACK))
            if self.evidence >= ALARM:
                self.candles, self.usual, self.evidence = 0, 0.0, 0.0
                return True
        self.candles += 1
        self.usual += (cut - self.usual) / min(self.candles, MEMORY)
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"candles": self.candles, "usual": self.usual, "evidence": self.evidence}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.candles, self.usual, self.evidence = state["candles"], state["usual"], state["evidence"]
