"""Trainer: the training step, readable from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from models.config import Precision
from models.vector import ParameterVector

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class StalledStep(RuntimeError):
    """A step that was not skipped had a gradient of exactly zero: the loss is cut off from the weights."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """What one training step did; ``grad_norm`` is global, before clipping, ``grad_norm_clipped`` after."""

    loss: float | None
    grad_norm: float | None
    grad_norm_clipped: float | None
    clipped: bool
    skipped: Literal["nonfinite"] | None = None


class Trainer:
    """Takes training steps on one network: one forward, one backward, clip by global norm, one optimizer step.

    The optimizer steps the network's parameters, or, instead of some, the ``vector`` that holds them.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip_norm: float = 1.0,
        precision: Precision = "fp32",
        device: str = "cpu",
        vector: ParameterVector | None = None,
    ) -> None:
        self.network, self.optimizer = network, optimizer
        self.clip_norm, self.precision = clip_norm, precision
        self.device_type = torch.device(device).type
        self.vector = vector
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # bf16 has the range of fp32; only fp16 needs scaling, from a modest scale: every overflow costs a step.
        self.scaler = torch.amp.GradScaler(self.device_type, init_scale=1024.0, enabled=precision == "fp16")

    def train_step(self, loss_of: Callable[[], Tensor]) -> TrainStep:
        """Take one step on the loss that ``loss_of`` computes in a fresh forward.

        A loss or gradient norm that is not finite leaves every weight and optimizer value untouched. Raises StalledStep
        where the gradient is exactly zero.
        """
        with self.autocast():
            loss = loss_of()
        torch.autograd.backward(self.scaler.scale(loss))
        if self.vector is not None:
            self.vector.gather()
        self.scaler.unscale_(self.optimizer)
        norm = get_total_norm([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        value, norm_value = torch.stack((loss.detach().double(), norm.double())).tolist()  # the one synchronisation
        if not (math.isfinite(value) and math.isfinite(norm_value)):
            self._let_go()
            return TrainStep(None, None, None, clipped=False, skipped="nonfinite")
        if norm_value == 0.0:
            self._let_go()
            raise StalledStep("the gradient was exactly zero")
        clipped = norm_value > self.clip_norm
        if clipped:
            clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        self.optimizer.step()
        self._let_go()
        return TrainStep(value, norm_value, self.clip_norm if clipped else norm_value, clipped)

    def autocast(self) -> torch.autocast:
        """Enter the precision that forwards run in."""
        # Cached casts made under no_grad would carry no gradient into the next forward (pytorch#112583).
        dtype = DTYPES[self.precision] if self.precision != "fp32" else None
        return torch.autocast(self.device_type, dtype, enabled=dtype is not None, cache_enabled=False)

    def _let_go(self) -> None:
        if self.scaler.is_enabled():
            self.scaler.update()
        for parameter in self.parameters:
            parameter.grad = None
