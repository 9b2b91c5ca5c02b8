"""Panel: the members that give direction probabilities, and the mixture of them that is published."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.candle_network import Opinion
from models.experts import BASELINES, Context, baselines
from models.features import Vector
from models.mixture import Mixture

MEMBERS = (*BASELINES, "skip", "network")
FORECASTERS = ("model", *MEMBERS)
"""Whose probabilities are scored, in order of the rows: what is published, then each member."""


class Panel:
    """The baselines, the network and its skip, and how much each counts."""

    def __init__(self) -> None:
        self.experts = baselines()
        self.mixture = Mixture(MEMBERS)

    def predict(self, context: Context, opinion: Opinion) -> Vector:
        """Give everybody's probabilities (FORECASTERS, 3); changes nothing."""
        members = [expert.predict(context) for expert in self.experts.values()]
        given = np.stack((*members, opinion.skip.directions, opinion.network.directions))
        return np.vstack((self.mixture.predict(given), given))

    def learn(self, context: Context, probabilities: Vector, label: int) -> None:
        """Take the direction that followed the context in which ``probabilities`` were given."""
        self.mixture.learn(probabilities[1:], label)
        for expert in self.experts.values():
            expert.learn(context, label)

    def state_dict(self) -> dict[str, Any]:
        return {
            "experts": {name: expert.state_dict() for name, expert in self.experts.items()},
            "mixture": self.mixture.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, expert in self.experts.items():
            expert.load_state_dict(state["experts"][name])
        self.mixture.load_state_dict(state["mixture"])
