"""Made: a prediction on its way, with what was known and said when it was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from models.candle_network import Opinion, Raw
from models.experts import Context
from models.features import Features, Vector
from models.records import Prediction, Trend


@dataclass(frozen=True, slots=True)
class Made:
    """A prediction for the next candle.

    ``close`` is the last one, ``row`` the newest candle's in the replay, ``probabilities`` (FORECASTERS, 3).
    """

    close: float
    row: int
    features: Features
    context: Context
    opinion: Opinion
    probabilities: Vector
    prediction: Prediction

    def state_dict(self) -> dict[str, Any]:
        """Give it as tensors, numbers, strings and dicts."""
        return {
            "close": self.close,
            "row": self.row,
            "odd": _tensor(self.features.odd),
            "even": _tensor(self.features.even),
            "scale": self.features.scale,
            "recent": list(self.context.recent),
            "opinion": asdict(self.opinion),
            "probabilities": _tensor(self.probabilities),
            "prediction": asdict(self.prediction),
        }


def restored(state: dict[str, Any]) -> Made:
    """Make the Made that gave the state."""
    features = Features(state["odd"].numpy().copy(), state["even"].numpy().copy(), state["scale"])
    first, second, third = state["recent"]
    prediction = dict(state["prediction"])
    trend = Trend(**prediction.pop("trend"))
    return Made(
        state["close"],
        state["row"],
        features,
        Context((first, second, third), features.joined),
        Opinion(*(Raw(**state["opinion"][name]) for name in ("skip", "network"))),
        state["probabilities"].numpy().copy(),
        Prediction(trend=trend, **prediction),
    )


@dataclass(frozen=True, slots=True)
class MadeTrend:
    """A trend on its way, predicted for the candles from ``open_time`` on.

    ``close`` is the last one before; ``inputs`` are the skip's plain odd ones.
    """

    open_time: int
    close: float
    row: int
    p_up: float
    inputs: Vector


def trends_state(trends: list[MadeTrend]) -> dict[str, Any]:
    """Give trends on their way as numbers and one tensor of inputs."""
    numbers = [[trend.open_time, trend.close, trend.row, trend.p_up] for trend in trends]
    inputs = torch.stack([_tensor(trend.inputs) for trend in trends]) if trends else torch.zeros(0, 0)
    return {"numbers": numbers, "inputs": inputs}


def restored_trends(state: dict[str, Any]) -> list[MadeTrend]:
    """Make the trends that gave the state."""
    inputs = state["inputs"].numpy()
    return [
        MadeTrend(open_time, close, row, p_up, inputs[i].copy())
        for i, (open_time, close, row, p_up) in enumerate(state["numbers"])
    ]


def _tensor(array: Vector) -> torch.Tensor:
    return torch.from_numpy(array.copy())
