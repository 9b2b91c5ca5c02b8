"""The linear skip: layers whose optimizer is one recursive Newton step per candle.

For a loss with curvature h (its second derivative by the layer's output) the step is the extended Kalman filter of an
online generalised linear model (Haykin, Kalman Filtering and Neural Networks, 2001, ch. 2):
P <- P - h (Px)(Px)^T / (1 + h x^T P x), then w <- w - P g, where g is the gradient that the one backward left, clipped
with all others. P stays in float64: it loses positive definiteness in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RecursiveLinear(nn.Module):
    """y = w x, starting at zero; the covariance of w is ``growth`` times ``precise`` (inputs, inputs).

    ``prior`` is the covariance's starting diagonal. ``forgetting`` below 1 lets the covariance grow by its inverse each
    step: in ``growth``, a number, because the matrix is long to walk through. After a forward with ``remember`` the
    layer holds ``inputs`` and wants ``curvature`` to be set before the step.
    """

    precise: Tensor
    growth: Tensor

    def __init__(self, prior: Tensor, forgetting: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(prior), dtype=torch.float64))
        self.register_buffer("precise", torch.diag(prior.double()))
        self.register_buffer("growth", torch.ones((), dtype=torch.float64))
        self.forgetting = forgetting
        self.inputs: Tensor | None = None
        self.curvature: Tensor | float = 0.0

    @property
    def covariance(self) -> Tensor:
        """The covariance of the weights."""
        return self.growth * self.precise

    def forward(self, inputs: Tensor, remember: bool = True) -> Tensor:
        """Answer the scalar output for ``inputs`` (inputs,) in float64."""
        if remember:
            self.inputs = inputs
        return torch.dot(self.weight, inputs)

    @torch.no_grad()
    def variance(self, inputs: Tensor) -> Tensor:
        """Tell how uncertain the output for ``inputs`` still is: x^T P x."""
        return self.growth * torch.dot(inputs, torch.mv(self.precise, inputs))

    @torch.no_grad()
    def newton_step(self) -> None:
        """Take the step for the remembered inputs, their curvature and the gradient, and forget all three."""
        gradient, inputs = self.weight.grad, self.inputs
        self.inputs, self.weight.grad = None, None
        if gradient is not None and inputs is not None:
            self._step(gradient, inputs)

    def _step(self, gradient: Tensor, inputs: Tensor) -> None:
        reach = self.growth * torch.mv(self.precise, inputs)  # P x
        shrink = 1 + self.curvature * torch.dot(inputs, reach)
        # The gradient is a multiple of x, so P g after the update is the same multiple of P x / shrink.
        multiple = torch.dot(gradient, inputs) / torch.dot(inputs, inputs).clamp(min=1e-300)
        self.weight.sub_(reach * (multiple / shrink))
        change = reach * torch.sqrt(self.curvature / shrink / self.growth)
        # Not addr_, which rounds differently at the ends of rows: the matrix has to stay symmetric to the last bit, so
        # that a triangle of it can be saved.
        self.precise.addcmul_(change[:, None], change, value=-1)
        self.growth.div_(self.forgetting)


class RecursiveGains(RecursiveLinear):
    """y = w x element by element: as many RecursiveLinear of one input side by side, each with its own ``growth``.

    Where ``curvature`` (inputs,) is 0 nothing is learned.
    """

    def __init__(self, prior: Tensor, forgetting: float = 1.0) -> None:
        super().__init__(prior, forgetting)
        self.precise = prior.double().clone()
        self.growth = torch.ones_like(self.precise)

    def forward(self, inputs: Tensor, remember: bool = True) -> Tensor:
        """Answer an output for each of ``inputs`` (inputs,) in float64."""
        if remember:
            self.inputs = inputs
        return self.weight * inputs

    def _step(self, gradient: Tensor, inputs: Tensor) -> None:
        learned = torch.as_tensor(self.curvature) > 0
        reach = self.growth * self.precise * inputs
        shrink = 1 + self.curvature * inputs * reach
        multiple = gradient * inputs / (inputs * inputs).clamp(min=1e-300)
        self.weight.sub_(reach * (multiple / shrink))
        self.precise.sub_(self.curvature / shrink / self.growth * reach * reach)
        self.growth.copy_(torch.where(learned, self.growth / self.forgetting, self.growth))
