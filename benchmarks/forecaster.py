"""Forecaster: the product's own learning core on a multivariate series.

Linear skip with its recursive Newton step plus a branch that starts silent, taught by one ``Trainer`` step a row: the
skip on the newest row, the branch on what the skip left over in the newest and some replayed rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.series import WINDOW, Array, Series, inputs, tokens
from models.network import Network, NetworkConfig
from models.optimizer import SkipAdamW
from models.skip import RecursiveLinear
from models.trainer import Trainer, TrainStep


@dataclass(frozen=True, slots=True)
class Settings:
    """What was chosen on the validation slice."""

    forgetting: float
    prior: float = 0.002
    learning_rate: float = 2e-5
    weight_decay: float = 0.1
    replays: int = 15
    gain: float = 0.3
    width: int = 32
    clip_norm: float = 1.0


class Forecaster:
    """Forecasts row t + 1 of a series from its rows 0..t, in z-scores; ``learn`` a row after its ``predict``."""

    def __init__(self, series: Series, settings: Settings, seed: int) -> None:
        self.settings, self.series = settings, series
        self.known = Known.of(series)
        variables = series.values.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = SkipAndBranch(self.known, settings)
        self.optimizer = SkipAdamW(
            self.network.branch.parameters(), self.network.skips, settings.learning_rate, settings.weight_decay
        )
        self.trainer = Trainer(self.network, self.optimizer, settings.clip_norm)
        self.random = np.random.Generator(np.random.Philox(seed))
        self.skip_said = torch.zeros(len(series.values), variables)
        self.learned: list[int] = []

    @torch.no_grad()
    def predict(self, row: int) -> Array:
        """Forecast (C,) the row after ``row``; no weight changes."""
        skip = self.network.skip(self.known.x[row], remember=False)
        self.skip_said[row] = skip
        branch = self.network.extra(*self.known.windows(torch.tensor([row])))[0]
        return np.asarray(self.series.values[row] + (skip + branch).numpy() * self.series.typical)

    def skip_forecast(self, row: int) -> Array:
        """Tell what the skip alone had forecast (C,) for the row after ``row`` when that was predicted."""
        return np.asarray(self.series.values[row] + self.skip_said[row].numpy() * self.series.typical)

    def learn(self, row: int) -> TrainStep:
        """Take one training step on the row after ``row``, which was predicted before, and some learned earlier."""
        replayed = self.random.integers(0, len(self.learned), self.settings.replays) if self.learned else ()
        rows = torch.tensor([row, *(self.learned[at] for at in replayed)])
        windows, moves, skip_said = self.known.windows(rows), self.known.move[rows].float(), self.skip_said[rows]

        def loss() -> Tensor:
            skip = self.network.skip(self.known.x[row])
            by_skip = 0.5 * ((self.known.move[row] - skip) ** 2).mean()
            left = (moves - skip_said - self.network.extra(*windows)) ** 2
            total: Tensor = by_skip + 0.5 * (self.known.weight * left).mean()
            return total

        taken = self.trainer.train_step(loss)
        self.learned.append(row)
        return taken


class SkipAndBranch(nn.Module):
    """Linear skip over the inputs of one row, product's Network over the last rows as branch; both start at zero."""

    def __init__(self, known: Known, settings: Settings) -> None:
        super().__init__()
        columns, variables = known.x.shape[1], known.move.shape[1]
        # Inputs have a squared length of 1, not of ``columns``, and the curvature is 1 / ``variables``, not 1.
        prior = torch.full((columns,), settings.prior * columns * variables)
        self.layers = nn.ModuleList(RecursiveLinear(prior, settings.forgetting) for _ in range(variables))
        self.branch = Network(
            NetworkConfig(
                even_inputs=known.even.shape[1],
                odd_inputs=known.odd.shape[1],
                even_outputs=variables,
                odd_outputs=variables,
                window=WINDOW,
                width=settings.width,
                gain=settings.gain,
            )
        )

    @property
    def skips(self) -> list[RecursiveLinear]:
        """The linear skip's layers, one a variable."""
        return [layer for layer in self.layers if isinstance(layer, RecursiveLinear)]

    def skip(self, inputs: Tensor, remember: bool = True) -> Tensor:
        """Answer (C,), in typical moves; curvatures are those of the mean of half the squared errors."""
        for layer in self.skips:
            layer.curvature = 1 / len(self.layers)
        return torch.stack([layer(inputs, remember) for layer in self.skips])

    def extra(self, even: Tensor, odd: Tensor) -> Tensor:
        """Answer (B, C), in typical moves: unlike prices, these series have no mirror, so both parities are summed."""
        by_even, by_odd = self.branch(even, odd)
        total: Tensor = by_even + by_odd
        return total


@dataclass(frozen=True, slots=True)
class Known:
    """What the rows show, as tensors: ``x`` (T, K), tokens ``even`` and ``odd``, and the ``move`` after each row.

    Moves are in typical moves, so ``weight`` (C,) says how much a variable's squared error counts in z-scores.
    """

    x: Tensor
    even: Tensor
    odd: Tensor
    move: Tensor
    weight: Tensor

    @classmethod
    def of(cls, series: Series) -> Known:
        """Work everything out at once; each row depends on itself and earlier ones alone."""
        even, odd = tokens(series)
        return cls(
            torch.from_numpy(inputs(series)),
            torch.from_numpy(even).float(),
            torch.from_numpy(odd).float(),
            torch.from_numpy(np.diff(series.values, axis=0) / series.typical),
            torch.from_numpy(series.typical**2 / (series.typical**2).mean()).float(),
        )

    def windows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Cut the windows (B, WINDOW, tokens) that end at each of the rows."""
        at = rows[:, None] + torch.arange(1 - WINDOW, 1)
        return self.even[at], self.odd[at]
