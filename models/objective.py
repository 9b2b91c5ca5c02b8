"""The objective of a training step: the skip on the newest sample, the branch on newest and replayed ones.

The skip learns as if it were alone; the branch learns what the skip, as it was when each sample was scored, left over.
So the branch can never starve or disturb the skip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.candle_network import CandleNetwork, Opinion, on_device
from models.features import Vector
from models.inputs import Inputs
from models.label import FLAT, UP
from models.replay import UNKNOWN, Targets

_MOVE = 2
"""Place of the move among flat, side, move and trend."""
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
    asked = [(network.flat, even, sample.direction == FLAT, 1.0)]
    if sample.direction != FLAT:
        asked.append((network.side, odd, sample.direction == UP, 1.0))
    if sample.due is not None:
        asked.append((network.trend, torch.from_numpy(sample.due.inputs).to(odd.device), sample.due.up, 1 / horizon))
    logits = torch.stack([layer(inputs) for layer, inputs, _, _ in asked])
    loss, curvatures = _logistic_loss(logits, [truth for _, _, truth, _ in asked], [weight for *_, weight in asked])
    for (layer, *_), curvature in zip(asked, curvatures, strict=True):
        layer.curvature = curvature
    move, spread = network.move(plain_odd), network.spread(plain_even)
    error = sample.move - move
    network.move.curvature = network.spread.curvature = MOVE_WEIGHT
    # Laplace's log density; its expected curvature by the log of the scale is 1 everywhere.
    by_move: Tensor = MOVE_WEIGHT * (0.5 * error**2 + error.detach().abs() * torch.exp(-spread) + spread)
    return loss + by_move


def trust_loss(network: CandleNetwork, sample: Sample, horizon: int) -> Tensor:
    """Compute the loss of trusting the branch as published: skip + trust x branch, both as they were said."""
    skip, (flat, side, move, _), due = sample.said.skip, sample.said.branch, sample.due
    moved = sample.direction != FLAT
    trend = (0.0, 0.0, False, 0.0) if due is None else (due.branch, due.skip, due.up, 1 / horizon)
    new = network.flat.weight.new_tensor
    trusted = network.trust(new((flat, side, move, trend[0])))
    logits = trusted + new((skip.flat, skip.side, 0.0, trend[1]))
    loss, curvatures = _logistic_loss(
        logits, [not moved, sample.direction == UP, False, trend[2]], [1.0, float(moved), 0.0, trend[3]]
    )
    curvatures[_MOVE] = MOVE_WEIGHT
    network.trust.curvature = curvatures
    by_move: Tensor = MOVE_WEIGHT * 0.5 * (sample.move - skip.move - trusted[_MOVE]) ** 2
    return loss + by_move


def branch_loss(network: CandleNetwork, tokens: Tensor, targets: Targets, horizon: int) -> Tensor:
    """Compute the branch's mean loss over a batch: what it adds to the skip's stored outputs is judged."""
    direction, trend = targets.direction, targets.trend
    flat, none = direction == FLAT, np.zeros(len(direction))
    signs = np.stack((1 - 2 * flat, FLAT - direction, none, 1 - 2 * trend), axis=1).astype(np.float32)
    weights = np.stack((none + 1, ~flat, none, (trend != UNKNOWN) / horizon), axis=1).astype(np.float32)
    skip, move, sign, weight = (
        torch.from_numpy(array).to(tokens.device) for array in (targets.skip, targets.move, signs, weights)
    )
    said = skip + network.outputs(tokens).float()
    by_move = F.smooth_l1_loss(said[:, _MOVE], move, reduction="sum")
    total: Tensor = (weight * F.softplus(sign * said)).sum() + MOVE_WEIGHT * by_move
    return total / len(direction)


def _logistic_loss(logits: Tensor, truths: Sequence[bool], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Compute the weighted sum of -log s(+-logit), and of each logit (n,) the curvature.

    By softplus of the signed logit, not by s(logit) - truth: so mirrored samples give mirrored gradients to the last
    bit. Trends weigh 1 / horizon, because neighbouring ones overlap by all but one candle.
    """
    signs, weight = logits.new_tensor(([-1.0 if truth else 1.0 for truth in truths], weights))
    probability = torch.sigmoid(logits.detach().abs())
    return torch.dot(weight, F.softplus(signs * logits)), weight * probability * (1 - probability)
