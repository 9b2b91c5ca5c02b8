"""Verdict: is the model better than its baselines, by a test that stays valid however often it is looked at.

For each baseline the log-loss difference d_t = baseline - model, cut to +-CUT, is bet on:
wealth_t = prod(1 + bet_t d_t), with a bet chosen from the past only. If the model is no better (the conditional mean of
d is never above 0) the wealth is a supermartingale, so by Ville's inequality it ever reaches 1/a with probability at
most a (Choe & Ramdas 2023, "Comparing sequential forecasters"; bets after Waudby-Smith & Ramdas 2024). ``better`` needs
the wealth against *every* baseline, so no choice of the best one has to be paid for; ``worse`` needs one of them, and
pays for the choice.

A window that begins at candle s is one of many that somebody might look at. Each start has its own share of the error
probability (``start_level``), so that all windows at all times together are wrong with probability at most LEVEL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from models.features import Vector

Verdict = Literal["better", "worse", "undecided"]

LEVEL = 0.05
CUT = 2.0
MAX_BET = 0.25
_PRIOR_SQUARES = 5.0  # keeps the first bets small


def start_level(start: int) -> float:
    """Give the error probability for windows that begin at candle ``start``; over all starts they sum to LEVEL."""
    return LEVEL / 2 if start == 0 else LEVEL / 2 / (start * (start + 1))


@dataclass(slots=True)
class Wealth:
    """The betting record against ``count`` baselines: logs of the bets for (``gains``) and against it (``losses``)."""

    count: int
    candles: int = 0
    sums: Vector = field(init=False)
    squares: Vector = field(init=False)
    gains: Vector = field(init=False)
    losses: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.sums, self.squares = np.zeros(self.count), np.zeros(self.count)
        self.gains, self.losses = np.zeros(self.count), np.zeros(self.count)

    def add(self, differences: Vector) -> None:
        """Take the loss differences (n, count), or (count,), of the next candles in order."""
        rows = np.clip(np.atleast_2d(differences), -CUT, CUT)
        sums = np.cumsum(np.vstack((self.sums, rows)), axis=0)
        squares = np.cumsum(np.vstack((self.squares, rows * rows)), axis=0)
        bets = sums[:-1] / (squares[:-1] + _PRIOR_SQUARES)  # mean over mean square, of the past
        growth = np.log1p(np.minimum(np.maximum(bets, -MAX_BET), MAX_BET) * rows)
        self.gains = self.gains + (growth * (bets > 0)).sum(axis=0)
        self.losses = self.losses + (growth * (bets < 0)).sum(axis=0)
        self.sums, self.squares = sums[-1], squares[-1]
        self.candles += len(rows)

    def verdict(self, start: int = 0) -> Verdict:
        """Decide between the model and the best baseline for a record that began at candle ``start``."""
        level = start_level(start) / 2  # half for each side
        if self.candles and self.gains.min() >= -math.log(level):
            return "better"
        if self.candles and self.losses.max() >= math.log(self.count / level):
            return "worse"
        return "undecided"

    def state_dict(self) -> dict[str, Any]:
        record = torch.from_numpy(np.stack((self.sums, self.squares, self.gains, self.losses)))
        return {"candles": self.candles, "record": record}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.candles = state["candles"]
        self.sums, self.squares, self.gains, self.losses = state["record"].numpy().copy()


def accuracy_interval(hits: float, candles: int, start: int = 0) -> tuple[float, float] | None:
    """Bound the accuracy by an anytime-valid confidence sequence, None without candles.

    Robbins' normal mixture for bounded (so 1/2-sub-Gaussian) observations, tightest near 2,000 candles (Howard et al.
    2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences", eq. 3.7).
    """
    if candles == 0:
        return None
    mixing = 1 / 250
    growth = candles * mixing + 1
    radius = math.sqrt(growth / (2 * candles**2 * mixing) * math.log(math.sqrt(growth) / start_level(start)))
    mean = hits / candles
    return max(0.0, float(mean - radius)), min(1.0, float(mean + radius))
