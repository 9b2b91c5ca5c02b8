"""CandleNetwork: the linear skip and the sequence network side by side, and what they say together.

Directions are two questions, each a logistic model: does the close move at all (even under the price mirror), and if it
does, which way (odd). p_flat = s(flat), p_up = (1 - p_flat) s(side), p_down = (1 - p_flat) s(-side), s the logistic
function. Both have an exact Newton step, unlike the three-way softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt

import numpy as np
import torch
from torch import Tensor, nn

from models.config import LearnerConfig
from models.features import EVEN_NAMES, ODD_NAMES, Vector
from models.inputs import INPUT_SCALE, Inputs, even_prior, odd_prior
from models.network import Network, NetworkConfig
from models.replay import EVEN_TOKEN, ODD_TOKEN
from models.skip import RecursiveGains, RecursiveLinear

FORGETTING = 0.99999
MOVE_PRIOR = 0.01
SPREAD_PRIOR = 0.05
TREND_PRIOR = 0.01
TRUST_PRIOR = 0.25


@dataclass(frozen=True, slots=True)
class Raw:
    """What a network says of the next candle.

    ``flat`` and ``side`` are the direction logits, ``move`` and ``spread`` in typical moves, ``trend`` a logit.
    """

    flat: float
    side: float
    move: float
    spread: float
    trend: float

    @property
    def directions(self) -> Vector:
        """Probabilities of down, flat and up."""
        flat, up = logistic(self.flat), logistic(self.side)
        return np.array([(1 - flat) * logistic(-self.side), flat, (1 - flat) * up])

    @property
    def trend_up(self) -> float:
        """Probability that the close will have risen a trend horizon ahead."""
        return logistic(self.trend)


@dataclass(frozen=True, slots=True)
class Opinion:
    """Everything one forward said: the ``skip`` alone, what the ``branch`` would add, and the whole ``network``.

    Direction logits allow for the skip's own uncertainty (``moderate``). ``branch`` is flat, side, move, trend.
    """

    skip: Raw
    network: Raw
    branch: tuple[float, float, float, float]


class CandleNetwork(nn.Module):
    """Skip layers on the features of the newest candle, beside a Network on the tokens of the window.

    The network says skip + trust x branch. Trust is learned like the skip, by Newton steps on what was published
    before its label was seen: a branch that only memorises its replays loses its say.
    """

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__()
        self.flat = RecursiveLinear(torch.from_numpy(even_prior()), FORGETTING)
        self.side = RecursiveLinear(torch.from_numpy(odd_prior()), FORGETTING)
        self.move = RecursiveLinear(_same_prior(len(ODD_NAMES), MOVE_PRIOR), FORGETTING)
        self.spread = RecursiveLinear(_same_prior(len(EVEN_NAMES), SPREAD_PRIOR), FORGETTING)
        self.trend = RecursiveLinear(_same_prior(len(ODD_NAMES), TREND_PRIOR), FORGETTING)
        self.trust = RecursiveGains(torch.full((4,), TRUST_PRIOR), FORGETTING)  # of flat, side, move and trend
        self.branch = Network(branch_config(config))

    @property
    def recursive(self) -> list[RecursiveLinear]:
        """The layers that the Newton step trains."""
        return [layer for layer in self.modules() if isinstance(layer, RecursiveLinear)]

    def outputs(self, tokens: Tensor) -> Tensor:
        """Run the branch on tokens (B, T, TOKEN): (B, 4) of flat, side, move and trend to add to the skip's."""
        even, odd = self.branch(tokens[..., : len(EVEN_TOKEN)], tokens[..., len(EVEN_TOKEN) :])
        return torch.cat((even, odd), dim=-1)

    @torch.no_grad()
    def opinions(self, inputs: Sequence[Inputs], tokens: Tensor) -> list[Opinion]:
        """Say everything about what follows each of B candles, with tokens (B, T, TOKEN); changes nothing."""
        added = self.outputs(tokens).double()
        skips = torch.stack([self._skip(each) for each in inputs])
        said = torch.cat((skips, added, added * self.trust.weight), dim=1).tolist()  # one synchronisation
        return [_opinion(*row) for row in said]

    def _skip(self, inputs: Inputs) -> Tensor:
        odd, even, plain_odd, plain_even = on_device(inputs, self.flat.weight.device)
        return torch.stack((
            self.flat(even, remember=False), self.side(odd, remember=False), self.move(plain_odd, remember=False),
            self.spread(plain_even, remember=False), self.trend(plain_odd, remember=False),
            self.flat.variance(even), self.side.variance(odd),
        ))  # fmt: skip


def _opinion(
    flat: float, side: float, move: float, log_spread: float, trend: float, flat_variance: float, side_variance: float,
    branch_flat: float, branch_side: float, branch_move: float, branch_trend: float,
    more_flat: float, more_side: float, more_move: float, more_trend: float,
) -> Opinion:  # fmt: skip
    spread = exp(min(max(log_spread, -8.0), 8.0))
    flat, side = moderate(flat, flat_variance), moderate(side, side_variance)
    skip = Raw(flat, side, move, spread, trend)
    network = Raw(flat + more_flat, side + more_side, move + more_move, spread, trend + more_trend)
    return Opinion(skip, network, (branch_flat, branch_side, branch_move, branch_trend))


def branch_config(config: LearnerConfig) -> NetworkConfig:
    """Give the branch's sizes for a learner."""
    size = config.size
    return NetworkConfig(
        even_inputs=len(EVEN_TOKEN),
        odd_inputs=len(ODD_TOKEN),
        even_outputs=1,
        odd_outputs=3,
        window=config.candles,
        width=size.width,
        layers=size.layers,
        heads=size.heads,
        feedforward=size.feedforward,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def on_device(inputs: Inputs, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Move the skip's inputs to a device: odd, even, plain odd, plain even, float64."""
    arrays = (inputs.odd, inputs.even, inputs.plain_odd, inputs.plain_even)
    odd, even, plain_odd, plain_even = (torch.from_numpy(array).to(device) for array in arrays)
    return odd, even, plain_odd, plain_even


def logistic(value: float) -> float:
    """Compute 1 / (1 + exp(-value)) without overflow."""
    if value >= 0:
        return 1 / (1 + exp(-value))
    odds = exp(max(value, -700.0))
    return odds / (1 + odds)


def moderate(logit: float, variance: float) -> float:
    """Average the logistic function over a logit's uncertainty (MacKay 1992, the moderated output)."""
    return logit / sqrt(1 + pi / 8 * variance)


def cross_entropy(probability: float) -> float:
    """Turn the probability given to what happened into nats."""
    return -log(max(probability, 1e-300))


def _same_prior(count: int, variance: float) -> Tensor:
    return torch.full((count,), variance / INPUT_SCALE**2, dtype=torch.float64)
