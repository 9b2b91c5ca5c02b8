"""Mixture: what gets published, an exponentially weighted mixture of all members with a fixed share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from models.features import Vector

FLOOR = 1e-5
"""Least probability of a direction that is published, so that no candle costs more than 11.5 nats."""


class Mixture:
    """Hedge with rate 1 on log loss, that is Bayes' rule, with a fixed share (Herbster & Warmuth 1998, section 5).

    After T candles its log loss is at most that of the best of its n members plus ln n - T ln(1 - share); against the
    best sequence of members with k switches it is at most k ln(n / share) more. ``floor`` adds at most
    -ln(1 - 3 floor) a candle.
    """

    def __init__(self, names: tuple[str, ...], share: float = 1e-4) -> None:
        self.names, self.share = names, share
        self.weights: Vector = np.full(len(names), 1 / len(names))

    def regret_bound(self, candles: int) -> float:
        """Bound, in nats, how much more than the best member ``candles`` candles can cost."""
        return math.log(len(self.names)) - candles * (math.log1p(-self.share) + math.log1p(-3 * FLOOR))

    def predict(self, members: Vector) -> Vector:
        """Mix member probabilities (members, 3) into (3,)."""
        mixed = self.weights @ members
        return np.asarray(mixed / mixed.sum() * (1 - 3 * FLOOR) + FLOOR)

    def learn(self, members: Vector, label: int) -> None:
        """Move weight to the members that gave ``label`` more."""
        weights = self.weights * np.maximum(members[:, label], 1e-300)
        self.weights = (1 - self.share) * weights / weights.sum() + self.share / len(self.names)

    def shares(self) -> dict[str, float]:
        """Tell how much each member counts; the shares sum to 1."""
        return dict(zip(self.names, self.weights.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"weights": torch.from_numpy(self.weights.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"].numpy().copy()
