"""ParameterVector: the parameters of a module as one vector, so that clipping and stepping take one operation each."""

from __future__ import annotations

import torch
from torch import nn


class ParameterVector:
    """Holds every parameter of a module in ``values``, one after the other; the module's own become views of it.

    The module must be on its device already, and must not be moved afterwards.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.parameters())
        self.values = nn.Parameter(torch.cat([part.detach().flatten() for part in self._parts]))
        pieces = torch.split(self.values.detach(), [part.numel() for part in self._parts])
        for part, piece in zip(self._parts, pieces, strict=True):
            part.data = piece.view_as(part)

    def gather(self) -> None:
        """Move the gradients that a backward left in the module into that of ``values``."""
        gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in self._parts]
        self.values.grad = torch.cat([gradient.flatten() for gradient in gradients])
        for part in self._parts:
            part.grad = None
