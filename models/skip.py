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
    """y = w x, starting at zero, with ``covariance`` P (inputs, inputs) of w; ``prior`` is its starting diagonal.

    With ``outputs`` w is (outputs, inputs): one row an output, all sharing P and therefore one curvature.
    After a forward with ``remember`` the layer holds ``inputs`` and wants ``curvature`` to be set before the step.
    """

    covariance: Tensor

    def __init__(self, prior: Tensor, forgetting: float = 1.0, outputs: int | None = None) -> None:
        super().__init__()
        shape = (len(prior),) if outputs is None else (outputs, len(prior))
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("covariance", torch.diag(prior.double()))
        self.forgetting = forgetting
        self.inputs: Tensor | None = None
        self.curvature: Tensor | float = 0.0

    def forward(self, inputs: Tensor, remember: bool = True) -> Tensor:
        """Answer the output, scalar or (outputs,), for ``inputs`` (inputs,) in float64."""
        if remember:
            self.inputs = inputs
        return torch.matmul(self.weight, inputs)

    @torch.no_grad()
    def variance(self, inputs: Tensor) -> Tensor:
        """Tell how uncertain the output for ``inputs`` still is: x^T P x."""
        return torch.dot(inputs, torch.mv(self.covariance, inputs))

    @torch.no_grad()
    def newton_step(self) -> None:
        """Take the step for the remembered inputs, their curvature and the gradient, and forget all three."""
        gradient, inputs = self.weight.grad, self.inputs
        if gradient is None or inputs is None:
            return
        reach = torch.mv(self.covariance, inputs)
        curvature = torch.as_tensor(self.curvature, dtype=torch.float64, device=reach.device)
        reach = reach * torch.sqrt(curvature / (1 + curvature * torch.dot(inputs, reach)))
        # In two roundings, not fused: so P stays symmetric to the last bit and its triangle can be saved for it.
        self.covariance.sub_(torch.outer(reach, reach))
        if self.forgetting != 1.0:
            self.covariance.div_(self.forgetting)
        self.weight.sub_(torch.matmul(self.covariance, gradient.t()).t())
        self.inputs, self.weight.grad = None, None
