"""Frames of the WebSocket and records as a client reads them from JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from models.candle import Candle
from models.records import Prediction, Step, Trend


@dataclass(frozen=True, slots=True)
class PredictionFrame:
    """A candle that closed and the prediction for the next, before anything was learned from it."""

    seq: int
    market: str
    candle: Candle
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class StepFrame:
    """What was learned from a candle, and the short rolling score."""

    seq: int
    market: str
    step: Step
    score: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class EventFrame:
    """Something that happened to a market."""

    seq: int
    market: str
    kind: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Missed:
    """Frames ``first`` to ``last`` did not reach this client: fetch what they held by REST."""

    first: int
    last: int


Frame = PredictionFrame | StepFrame | EventFrame | Missed


def parse_candle(data: dict[str, Any]) -> Candle:
    """Make a candle from its JSON."""
    return Candle(**_known(Candle, data))


def parse_prediction(data: dict[str, Any]) -> Prediction:
    """Make a prediction from its JSON."""
    return Prediction(**_known(Prediction, data) | {"trend": Trend(**_known(Trend, data["trend"]))})


def parse_step(data: dict[str, Any]) -> Step:
    """Make a step from its JSON."""
    return Step(**_known(Step, data))


def parse_frame(text: str | bytes) -> Frame | None:
    """Make a frame from its text; None for hello, pong and what a newer service may send."""
    data = json.loads(text)
    match data["type"]:
        case "prediction":
            candle, prediction = parse_candle(data["candle"]), parse_prediction(data["prediction"])
            return PredictionFrame(data["seq"], data["market"], candle, prediction)
        case "step":
            return StepFrame(data["seq"], data["market"], parse_step(data["step"]), data.get("score"))
        case "event":
            return EventFrame(data["seq"], data["market"], data["kind"], data["detail"])
        case "missed":
            return Missed(data["from"], data["to"])
    return None


def _known(record: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Keep the members this version knows, so that a newer service may add some."""
    names = {field.name for field in fields(record)}
    return {name: value for name, value in data.items() if name in names}
