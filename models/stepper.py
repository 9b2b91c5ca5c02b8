"""Stepper: the network of one learner with its optimizer, stepped candle by candle and rolled back if it must be."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.candle_network import CandleNetwork, Opinion
from models.config import LearnerConfig
from models.inputs import Inputs
from models.objective import Sample, branch_loss, skip_loss, trust_loss
from models.optimizer import SkipAdamW
from models.replay import Replay
from models.trainer import Trainer, TrainStep
from models.vector import ParameterVector

Weights = Mapping[str, Tensor]

WEIGHT_DECAY = 0.1
BRANCH_WEIGHT = 0.1
"""AdamW does not mind the scale of a loss; the global clip norm does, and must not shorten the skip's Newton steps."""
SNAPSHOT_EVERY = 300
"""Good steps between copies of the weights that a rollback returns to."""
PATIENCE = 5
"""Steps in a row that may be non-finite before the weights are rolled back."""


class Stepper:
    """Owns the weights: nothing else changes them."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = CandleNetwork(config).to(config.device)
        self.network.eval()  # no dropout anywhere: a step is a function of state and sample
        branch = ParameterVector(self.network.branch)
        self.optimizer = SkipAdamW([branch.values], self.network.recursive, config.rate, WEIGHT_DECAY)
        self.trainer = Trainer(self.network, self.optimizer, config.clip_norm, config.precision, config.device, branch)
        self.steps = self.clipped = self.nonfinite = self.rollbacks = 0
        self._failures = 0  # non-finite steps in a row
        self._good: Weights
        self._good_step: int
        self._keep()

    def opinions(self, inputs: Sequence[Inputs], tokens: npt.NDArray[np.float32]) -> list[Opinion]:
        """Say what follows each of B candles, with tokens (B, T, TOKEN); changes nothing."""
        with torch.no_grad(), self.trainer.autocast():
            return self.network.opinions(inputs, self._tensor(tokens))

    def train(self, sample: Sample, row: int, replay: Replay) -> TrainStep:
        """Take one training step on the newest sample, at ``row`` of the replay, and some drawn from before."""
        random = np.random.Generator(np.random.Philox(key=[self.config.seed, self.steps]))
        rows = np.append(replay.draw(self.config.size.replays, row, random), row)
        tokens, targets = self._tensor(replay.windows(rows)), replay.targets(rows)
        horizon = self.config.trend_horizon

        def loss() -> Tensor:
            newest = skip_loss(self.network, sample, horizon) + trust_loss(self.network, sample, horizon)
            return newest + BRANCH_WEIGHT * branch_loss(self.network, tokens, targets, horizon)

        taken = self.trainer.train_step(loss)
        self._count(taken)
        return taken

    def train_batch(self, rows: npt.NDArray[np.int64], replay: Replay) -> TrainStep:
        """Take one training step of the branch alone on a batch of old samples."""
        tokens, targets = self._tensor(replay.windows(rows)), replay.targets(rows)
        return self.trainer.train_step(lambda: branch_loss(self.network, tokens, targets, self.config.trend_horizon))

    def said(self, rows: npt.NDArray[np.int64], replay: Replay) -> npt.NDArray[np.float32]:
        """Say flat, side, move and trend (B, 4) of old samples with the branch in full; changes nothing."""
        with torch.no_grad(), self.trainer.autocast():
            added = self.network.outputs(self._tensor(replay.windows(rows))).float().cpu().numpy()
        return np.asarray(replay.targets(rows).skip + added)

    def roll_back_if_stuck(self) -> int | None:
        """Return to the last good weights after PATIENCE non-finite steps in a row; gives the step returned to."""
        if self._failures < PATIENCE:
            return None
        self.network.load_state_dict(self._good)
        self.optimizer.state.clear()
        self._failures = 0
        self.rollbacks += 1
        return self._good_step

    def describe(self) -> dict[str, Any]:
        """Say what the network is and how its steps went."""
        return {
            "parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "device": str(self.network.flat.weight.device),
            "precision": self.config.precision,
            "learning_rate": self.config.rate,
            "clip_norm": self.config.clip_norm,
            "clipped": self.clipped,
            "rollbacks": self.rollbacks,
        }

    def state_dict(self) -> dict[str, Any]:
        """Give weights, also the last good ones, optimizer, scaler and counters; matrices as their lower triangle."""
        return {
            "network": _packed(self.network.state_dict()),
            "good": _packed(self._good),
            "good_step": self._good_step,
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "scaler": self.trainer.scaler.state_dict(),
            "counters": {name: getattr(self, name) for name in _COUNTERS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the stepper that gave the state."""
        self.network.load_state_dict(_unpacked(state["network"], self.network.state_dict()))
        self._good, self._good_step = _unpacked(state["good"], self._good), state["good_step"]
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.trainer.scaler.load_state_dict(state["scaler"])
        for name in _COUNTERS:
            setattr(self, name, state["counters"][name])

    def _count(self, taken: TrainStep) -> None:
        if taken.skipped:
            self.nonfinite += 1
            self._failures += 1
            return
        self.steps += 1
        self.clipped += taken.clipped
        self._failures = 0
        if self.steps % SNAPSHOT_EVERY == 0:
            self._keep()

    def _keep(self) -> None:
        """Keep a copy of the weights to return to; not of AdamW's averages, which may be what went wrong."""
        self._good, self._good_step = copy.deepcopy(self.network.state_dict()), self.steps

    def _tensor(self, array: npt.NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self.config.device)


_COUNTERS = ("steps", "clipped", "nonfinite", "rollbacks", "_failures")


def _packed(weights: Weights) -> dict[str, Tensor]:
    """Copy to the CPU, of each symmetric matrix the lower triangle."""
    return {
        name: _triangle(value) if _symmetric(name, value) else value.detach().cpu().clone()
        for name, value in weights.items()
    }


def _unpacked(packed: Weights, like: Weights) -> dict[str, Tensor]:
    return {
        name: _square(value, like[name]) if _symmetric(name, like[name]) else value.to(like[name].device, copy=True)
        for name, value in packed.items()
    }


def _symmetric(name: str, value: Tensor) -> bool:
    return name.endswith("precise") and value.dim() == 2


def _triangle(matrix: Tensor) -> Tensor:
    rows, columns = torch.tril_indices(*matrix.shape)
    return matrix.cpu()[rows, columns]


def _square(triangle: Tensor, like: Tensor) -> Tensor:
    square = torch.empty(like.shape, dtype=triangle.dtype)
    rows, columns = torch.tril_indices(*like.shape)
    square[rows, columns] = triangle
    square[columns, rows] = triangle
    return square.to(like.device)
