"""Interval: one adaptive quantile per side keeps a central interval at its nominal coverage."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

COVERAGE = 0.8
STEP = 0.01


@dataclass(slots=True)
class Interval:
    """Multiples of the predicted spread below and above the expected close, followed in their logs by online descent.

    Each side misses a share (1 - COVERAGE) / 2 of the candles in the long run, whatever the prices do (Gibbs & Candes
    2021, adaptive conformal inference).
    """

    below: float = 1.3
    above: float = 1.3

    def learn(self, error: float, spread: float) -> None:
        """Take the close minus the expected close, and the spread predicted for it, both in the same unit."""
        miss = (1 - COVERAGE) / 2
        self.below = _followed(self.below, (error < -self.below * spread) - miss)
        self.above = _followed(self.above, (error > self.above * spread) - miss)

    def state_dict(self) -> dict[str, Any]:
        return {"below": self.below, "above": self.above}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.below, self.above = state["below"], state["above"]


def _followed(multiple: float, surprise: float) -> float:
    return min(max(multiple * exp(STEP * surprise), 1e-3), 1e3)
