"""The simple forecasters: the contract's baselines, each an online expert that gives three probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from models.features import EVEN_NAMES, ODD_NAMES, Vector
from models.label import FLAT

INPUTS = len(ODD_NAMES) + len(EVEN_NAMES)


@dataclass(frozen=True, slots=True)
class Context:
    """What an expert may look at: the last three directions, newest first, and the newest features (INPUTS,)."""

    recent: tuple[int, int, int]
    features: Vector

    def after(self, direction: int | None, features: Vector) -> Context:
        """Give the context one candle later; without a direction, after a gap, none is remembered."""
        recent = (FLAT, FLAT, FLAT) if direction is None else (direction, *self.recent[:2])
        return Context(recent, features)


class Expert(Protocol):
    """An online forecaster. ``predict`` changes nothing; ``learn`` takes the direction that followed the context."""

    def predict(self, context: Context) -> Vector: ...
    def learn(self, context: Context, label: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Frequencies:
    """Direction frequencies after the last ``order`` directions, each starting at one: Laplace's rule.

    Order 0 is the contract's ``majority``, order 3 its ``markov``.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.counts = np.ones((3**order, 3))

    def predict(self, context: Context) -> Vector:
        row: Vector = self.counts[self._row(context)]
        return np.asarray(row / row.sum())

    def learn(self, context: Context, label: int) -> None:
        self.counts[self._row(context), label] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"counts": torch.from_numpy(self.counts.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"].numpy().copy()

    def _row(self, context: Context) -> int:
        return sum(direction * 3**place for place, direction in enumerate(context.recent[: self.order]))


class Follow:
    """Say the last direction again, or its opposite, as surely as that has been right so far.

    ``reverse`` False is the contract's ``repeat``, True its ``reverse`` (after a flat candle both say flat).
    """

    def __init__(self, reverse: bool) -> None:
        self.reverse = reverse
        self.hits, self.count = 1.0, 3.0

    def choice(self, context: Context) -> int:
        """Name the direction it stands for."""
        last = context.recent[0]
        return 2 - last if self.reverse else last

    def predict(self, context: Context) -> Vector:
        sure = self.hits / self.count
        probabilities = np.full(3, (1 - sure) / 2)
        probabilities[self.choice(context)] = sure
        return probabilities

    def learn(self, context: Context, label: int) -> None:
        self.hits += label == self.choice(context)
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"hits": float(self.hits), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hits, self.count = state["hits"], state["count"]


class SoftmaxRegression:
    """Online softmax regression on the features, by AdaGrad (Duchi et al. 2011): the contract's ``linear``."""

    def __init__(self, rate: float = 0.05) -> None:
        self.rate = rate
        self.weights = np.zeros((3, INPUTS))
        self.squares = np.full((3, INPUTS), 1e-2)

    def predict(self, context: Context) -> Vector:
        logits = self.weights @ context.features
        odds = np.exp(logits - logits.max())
        return np.asarray(odds / odds.sum())

    def learn(self, context: Context, label: int) -> None:
        error = self.predict(context)
        error[label] -= 1
        gradient = np.outer(error, context.features)
        self.squares += gradient * gradient
        self.weights -= self.rate * gradient / np.sqrt(self.squares)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": torch.from_numpy(self.weights.copy()), "squares": torch.from_numpy(self.squares.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.squares = state["weights"].numpy().copy(), state["squares"].numpy().copy()


BASELINES = ("majority", "repeat", "reverse", "markov", "linear")
"""The contract's direction baselines, in the order of every score."""


def baselines() -> dict[str, Expert]:
    """Make the contract's direction baselines, fresh."""
    return {
        "majority": Frequencies(0),
        "repeat": Follow(reverse=False),
        "reverse": Follow(reverse=True),
        "markov": Frequencies(3),
        "linear": SoftmaxRegression(),
    }


def start_context() -> Context:
    """Make the context of a window without history."""
    return Context((FLAT, FLAT, FLAT), np.zeros(INPUTS))
