"""Trends: predictions of the close a horizon ahead, on their way until they come due."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from models.candle import Candle
from models.features import Vector
from models.label import FLAT, UP, direction_index
from models.made import Made
from models.objective import DueTrend
from models.records import TrendOutcome


@dataclass(frozen=True, slots=True)
class MadeTrend:
    """A trend on its way, predicted for the candles from ``open_time`` on.

    ``close`` is the last one before; ``skip`` and ``branch`` are what the skip said, as a logit, and the branch would
    have added; ``inputs`` are the skip's plain odd ones.
    """

    open_time: int
    close: float
    row: int
    p_up: float
    skip: float
    branch: float
    inputs: Vector


class Trends:
    """The trends predicted in the last ``horizon`` candles of one unbroken run."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._made: deque[MadeTrend] = deque(maxlen=horizon + 1)

    def add(self, made: Made, inputs: Vector) -> None:
        """Send a prediction's trend on its way."""
        said, opinion = made.prediction, made.opinion
        numbers = (said.open_time, made.close, made.row, said.trend.p_up, opinion.skip.trend, opinion.branch[3])
        self._made.append(MadeTrend(*numbers, inputs))

    def due(self, candle: Candle, tick: float | None) -> tuple[int, TrendOutcome, DueTrend] | None:
        """Tell what came of the trend predicted a horizon ago: its row, its score, and what to learn from it.

        None when there was none, or the close is where it was: a flat trend is never counted.
        """
        if len(self._made) <= self.horizon:
            return None
        made = self._made[0]
        direction = direction_index(made.close, candle.close, tick)
        if direction == FLAT:
            return None
        up = direction == UP
        outcome = TrendOutcome(made.open_time, (made.p_up >= 0.5) == up)
        return made.row, outcome, DueTrend(made.inputs, made.skip, made.branch, up)

    def clear(self) -> None:
        """Forget all: a gap came between."""
        self._made.clear()

    def state_dict(self) -> dict[str, Any]:
        """Give the trends on their way as numbers and one tensor of inputs."""
        numbers = [[each.open_time, each.close, each.row, each.p_up, each.skip, each.branch] for each in self._made]
        inputs = [torch.from_numpy(each.inputs.copy()) for each in self._made]
        return {"numbers": numbers, "inputs": torch.stack(inputs) if inputs else torch.zeros(0, 0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._made.clear()
        for (open_time, close, row, p_up, skip, branch), inputs in zip(
            state["numbers"], state["inputs"].numpy(), strict=True
        ):
            self._made.append(MadeTrend(open_time, close, row, p_up, skip, branch, inputs.copy()))
