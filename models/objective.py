"""The objective of a training step: the skip on the newest sample, the branch on newest and replayed ones.

The skip learns as if it were alone; the branch learns what the skip, as it was when each sample was scored, left over.
So the branch can never starve or disturb the skip.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.candle_network import CandleNetwork, Opinion, on_device
from models.features import Vector
from models.inputs import Inputs
from models.label import FLAT, UP
from models.replay import UNKNOWN, Targets
from models.skip import RecursiveLinear

MOVE_WEIGHT = 0.1
"""Weight of the price losses; a move is a few typical moves, so that this keeps their gradient beside the others'."""


@dataclass(frozen=True, slots=True)
class DueTrend:
    """A trend that came due: the skip's plain odd ``inputs`` then, its logit, the branch's addition, and what came."""

    inputs: Vector
    skip: float
    branch: float
    up: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest labelled candle and what had been said of it; ``direction`` is 0, 1, 2, ``move`` in typical moves."""

    inputs: Inputs
    said: Opinion
    direction: int
    move: float
    due: DueTrend | None


def skip_loss(network: CandleNetwork, sample: Sample, horizon: int) -> Tensor:
    """Compute the skip's loss on the newest sample and leave the curvature of each part in its layer."""
    odd, even, plain_odd, plain_even = on_device(sample.inputs, network.flat.weight.device)
    loss: Tensor = _logistic_loss(network.flat, even, sample.direction == FLAT)
    if sample.direction != FLAT:
        loss = loss + _logistic_loss(network.side, odd, sample.direction == UP)
    move, spread = network.move(plain_odd), network.spread(plain_even)
    error = sample.move - move
    network.move.curvature = network.spread.curvature = MOVE_WEIGHT
    # Laplace's log density; its expected curvature by the log of the scale is 1 everywhere.
    loss = loss + MOVE_WEIGHT * (0.5 * error**2 + error.detach().abs() * torch.exp(-spread) + spread)
    if sample.due is not None:
        due = torch.from_numpy(sample.due.inputs).to(move.device)
        loss = loss + _logistic_loss(network.trend, due, sample.due.up, weight=1 / horizon)
    return loss


def trust_loss(network: CandleNetwork, sample: Sample, horizon: int) -> Tensor:
    """Compute the loss of trusting the branch as published: skip + trust x branch, both as they were said."""
    skip, (flat, side, move, _) = sample.said.skip, sample.said.branch
    by_flat, by_side, by_move, by_trend = network.trusts
    device = network.flat.weight.device
    loss: Tensor = _logistic_loss(by_flat, _vector(flat, device), sample.direction == FLAT, skip.flat)
    if sample.direction != FLAT:
        loss = loss + _logistic_loss(by_side, _vector(side, device), sample.direction == UP, skip.side)
    error = sample.move - skip.move - by_move(_vector(move, device))
    by_move.curvature = MOVE_WEIGHT
    loss = loss + MOVE_WEIGHT * 0.5 * error**2
    if sample.due is not None:
        due = sample.due
        loss = loss + _logistic_loss(by_trend, _vector(due.branch, device), due.up, due.skip, 1 / horizon)
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
    loss = F.softplus(said[:, 0] * (1 - 2 * flat))
    loss = loss + moved * F.softplus(said[:, 1] * (FLAT - direction))
    loss = loss + MOVE_WEIGHT * F.smooth_l1_loss(said[:, 2], move, reduction="none")
    by_trend = (trend != UNKNOWN) * F.softplus(said[:, 3] * (1 - 2 * trend))
    mean: Tensor = (loss + by_trend / horizon).mean()
    return mean


def _logistic_loss(
    layer: RecursiveLinear, inputs: Tensor, truth: bool, offset: float = 0.0, weight: float = 1.0
) -> Tensor:
    """Compute -log s(+-logit) and set the layer's curvature.

    By softplus of the signed logit, not by s(logit) - truth: so mirrored samples give mirrored gradients to the last
    bit. Trends weigh 1 / horizon, because neighbouring ones overlap by all but one candle.
    """
    logit = layer(inputs) + offset
    probability = torch.sigmoid(logit.detach().abs())
    layer.curvature = weight * probability * (1 - probability)
    return weight * F.softplus(-logit if truth else logit)


def _vector(value: float, device: torch.device) -> Tensor:
    return torch.tensor([value], dtype=torch.float64, device=device)
