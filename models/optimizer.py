"""SkipAdamW: one optimizer step for the whole network, Newton for the linear skip and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from models.skip import RecursiveLinear


class SkipAdamW(torch.optim.AdamW):
    """AdamW that takes the recursive Newton step of its ``layers`` in the same ``step``.

    The layers' weights are in a parameter group of their own, so that clipping and unscaling see them like any other;
    AdamW passes over them because their gradients are used up by then.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], layers: Sequence[RecursiveLinear], lr: float, weight_decay: float
    ) -> None:
        groups: list[dict[str, Any]] = [{"params": list(parameters)}]
        if layers:
            groups.append({"params": [layer.weight for layer in layers], "weight_decay": 0.0})
        super().__init__([group for group in groups if group["params"]], lr=lr, weight_decay=weight_decay, fused=True)
        self.layers = tuple(layers)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every weight that has a gradient."""
        for layer in self.layers:
            layer.newton_step()
        return super().step(closure)
