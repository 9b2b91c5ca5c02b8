"""The objective of a training step: the skip on the newest sample, the branch on newest and replayed ones.

The skip learns as if it were alone; the branch learns what the skip, as it was when each sample was scored, left over.
So the branch can never starve or disturb the skip.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.candle_network import CandleNetwork, on_device
from models.features import Vector
from models.inputs import Inputs
from models.label import FLAT, UP
from models.replay import UNKNOWN, Targets

MOVE_WEIGHT = 0.1
"""Weight of the price losses; a move is a few typical moves, so that this keeps their gradient beside the others'."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest labelled candle: ``direction`` is 0, 1 or 2, ``move`` in typical moves; a trend that came ``due``."""

    inputs: Inputs
    direction: int
    move: float
    due: tuple[Vector, bool] | None  # plain odd inputs at the time, and whether the close rose


def skip_loss(network: CandleNetwork, sample: Sample, horizon: int) -> Tensor:
    """Compute the skip's loss on the newest sample and leave the curvature of each part in its layer."""
    odd, even, plain_odd, plain_even = on_device(sample.inputs, network.flat.weight.device)
    flat = network.flat(even)
    loss: Tensor = F.binary_cross_entropy_with_logits(flat, _like(flat, sample.direction == FLAT))
    network.flat.curvature = _logistic_curvature(flat)
    if sample.direction != FLAT:
        side = network.side(odd)
        loss = loss + F.binary_cross_entropy_with_logits(side, _like(side, sample.direction == UP))
        network.side.curvature = _logistic_curvature(side)
    move, spread = network.move(plain_odd), network.spread(plain_even)
    error = sample.move - move
    network.move.curvature = network.spread.curvature = MOVE_WEIGHT
    # Laplace's log density; its expected curvature by the log of the scale is 1 everywhere.
    loss = loss + MOVE_WEIGHT * (0.5 * error**2 + error.detach().abs() * torch.exp(-spread) + spread)
    if sample.due is not None:
        trend = network.trend(torch.from_numpy(sample.due[0]).to(flat.device))
        # Labels of neighbouring candles overlap by all but one candle: together they weigh as much as one.
        loss = loss + F.binary_cross_entropy_with_logits(trend, _like(trend, sample.due[1])) / horizon
        network.trend.curvature = _logistic_curvature(trend) / horizon
    return loss


def branch_loss(network: CandleNetwork, tokens: Tensor, targets: Targets, horizon: int) -> Tensor:
    """Compute the branch's mean loss over a batch: what it adds to the skip's stored outputs is judged."""
    device = tokens.device
    skip = torch.from_numpy(targets.skip).to(device)
    direction = torch.from_numpy(targets.direction.astype("int64")).to(device)
    trend = torch.from_numpy(targets.trend.astype("float32")).to(device)
    move = torch.from_numpy(targets.move).to(device)
    said = skip + network.outputs(tokens).float()
    flat, moved = (direction == FLAT).float(), (direction != FLAT).float()
    loss = F.binary_cross_entropy_with_logits(said[:, 0], flat, reduction="none")
    loss = loss + moved * F.binary_cross_entropy_with_logits(said[:, 1], (direction == UP).float(), reduction="none")
    loss = loss + MOVE_WEIGHT * F.smooth_l1_loss(said[:, 2], move, reduction="none")
    known = (trend != UNKNOWN).float()
    by_trend = F.binary_cross_entropy_with_logits(said[:, 3], trend.clamp(min=0), reduction="none")
    mean: Tensor = (loss + known * by_trend / horizon).mean()
    return mean


def _like(tensor: Tensor, value: bool) -> Tensor:
    return torch.full_like(tensor, float(value))


def _logistic_curvature(logit: Tensor) -> Tensor:
    probability = torch.sigmoid(logit.detach())
    return probability * (1 - probability)
