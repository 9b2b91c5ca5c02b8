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
    trend, opinion = Trend(**prediction.pop("trend")), state["opinion"]
    return Made(
        state["close"],
        state["row"],
        features,
        Context((first, second, third), features.joined),
        Opinion(Raw(**opinion["skip"]), Raw(**opinion["network"]), tuple(opinion["branch"])),
        state["probabilities"].numpy().copy(),
        Prediction(trend=trend, **prediction),
    )


def _tensor(array: Vector) -> torch.Tensor:
    return torch.from_numpy(array.copy())
