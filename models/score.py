"""Score: the test-then-train scorecard, over the whole run and over windows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.experts import BASELINES
from models.features import Vector
from models.label import FLAT
from models.panel import FORECASTERS
from models.records import DIRECTIONS, ScoreWindow
from models.verdict import Wealth, accuracy_interval

SCORE_WINDOW_MAX = 14_400
BINS = 10
_LABEL, _LIVE, _CONFIDENCE, _COVERED, _ERROR, _PERSISTENCE, _DUE, _RIGHT = range(8)  # due, right: trends
_LOSS = 8
_CHOICE = _LOSS + len(FORECASTERS)
_BRIER = _CHOICE + len(FORECASTERS)
COLUMNS = _BRIER + len(FORECASTERS)

_SUMS = ("labels", "hits", "sums", "bins")
_PLACE = {name: number for number, name in enumerate(FORECASTERS)}
_LABELS, _PLACES = np.eye(3), np.eye(BINS)
HALF_LIFE = 3_600
"""Candles after which one counts half in the fading score."""

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scored:
    """One scored candle: ``probabilities`` (FORECASTERS, 3), the ``label`` that came, and the price errors.

    ``covered`` tells whether the close lay in the interval; ``error`` and ``persistence`` are absolute errors of the
    expected close and of the last close; ``trend`` whether a trend that came due now was right, if one did.
    """

    probabilities: Vector
    label: int
    live: bool
    covered: bool
    error: float
    persistence: float
    trend: bool | None

    def row(self) -> Rows:
        """Lay it out as one row of the score's table."""
        given = self.probabilities
        losses = -np.log(np.maximum(given[:, self.label], 1e-12))
        brier = (given**2).sum(axis=1) - 2 * given[:, self.label] + 1
        due, right = self.trend is not None, bool(self.trend)
        head = (self.label, self.live, given[0].max(), self.covered, self.error, self.persistence, due, right)
        with np.errstate(over="ignore"):  # of prices near 1e300; a mean that is not finite is no mean
            return np.concatenate((head, losses, given.argmax(axis=1), brier)).astype(np.float32)


class Tally:
    """Sums over scored candles from which every measure follows."""

    def __init__(self) -> None:
        self.candles = 0.0
        self.labels = np.zeros(3)
        self.hits = np.zeros((len(FORECASTERS), 3))  # by label
        self.sums = np.zeros(COLUMNS)
        self.bins = np.zeros((BINS, 3))  # candles, confidence, hits

    @classmethod
    def of(cls, rows: Rows, weights: Vector | None = None) -> Tally:
        """Sum up the rows (n, COLUMNS) of some candles, each as often as its weight (n,) says, or once."""
        tally, table = cls(), rows.astype(np.float64)
        weights = np.ones(len(table)) if weights is None else weights
        labels = _LABELS[table[:, _LABEL].astype(int)] * weights[:, None]
        hits = (table[:, _CHOICE:_BRIER] == table[:, _LABEL, None]).astype(np.float64)
        confidence = table[:, _CONFIDENCE]
        places = np.minimum(confidence * BINS, BINS - 1).astype(int)
        judged = np.stack((weights, weights * confidence, weights * hits[:, 0]), axis=1)
        tally.candles, tally.labels, tally.hits = weights.sum(), labels.sum(axis=0), hits.T @ labels
        tally.sums, tally.bins = weights @ table, _PLACES[places].T @ judged
        return tally

    def add(self, other: Tally) -> None:
        """Add the sums over other candles."""
        self.candles += other.candles
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def share(self, label: int) -> float | None:
        """Give the share of candles that went one way."""
        return self._mean(self.labels[label])

    def forecaster(self, number: int) -> dict[str, Any]:
        """Give the direction measures of one forecaster."""
        seen = self.labels > 0
        return {
            "accuracy": self._mean(self.hits[number].sum()),
            "balanced_accuracy": float((self.hits[number][seen] / self.labels[seen]).mean()) if seen.any() else None,
            "log_loss": self.mean(_LOSS + number),
            "brier": self.mean(_BRIER + number),
        }

    def model(self) -> dict[str, Any]:
        """Give every measure of what was published."""
        repeat = self._mean(self.hits[FORECASTERS.index("repeat")].sum())
        own = self.forecaster(0)
        due, right = self.sums[_DUE], self.sums[_RIGHT]
        return own | {
            "ece": self._ece(),
            "kappa_t": (own["accuracy"] - repeat) / (1 - repeat) if repeat is not None and repeat < 1 else None,
            "trend_accuracy": float(right / due) if due else None,
            "trend_candles": int(due),
            "interval_coverage": self.mean(_COVERED),
            "close_mae": self.mean(_ERROR),
        }

    def persistence(self) -> dict[str, Any]:
        """Give the measures of the last price; it names no probabilities, so it has no log loss."""
        return {"accuracy": self.share(FLAT), "log_loss": None, "close_mae": self.mean(_PERSISTENCE)}

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name) for name in _SUMS}
        return {"candles": float(self.candles)} | {
            name: torch.from_numpy(array.copy()) for name, array in arrays.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.candles = state["candles"]
        for name in _SUMS:
            setattr(self, name, state[name].numpy().copy())

    def mean(self, column: int) -> float | None:
        """Give the mean of a column."""
        return self._mean(self.sums[column])

    def _mean(self, total: Any) -> float | None:
        mean = float(total / self.candles) if self.candles else math.inf
        return mean if math.isfinite(mean) else None

    def _ece(self) -> float | None:
        return self._mean(np.abs(self.bins[:, 2] - self.bins[:, 1]).sum())


class Score:
    """The scorecard of one run: totals for ever, the last ``capacity`` candles one by one."""

    def __init__(self, market: str, capacity: int = SCORE_WINDOW_MAX) -> None:
        self.market, self.capacity = market, capacity
        self.tallies = {False: Tally(), True: Tally()}  # by "live only"
        self.wealth = {False: Wealth(len(BASELINES)), True: Wealth(len(BASELINES))}
        self.first_live = 0
        self._ring = np.zeros((capacity, COLUMNS), np.float32)

    @property
    def candles(self) -> int:
        """How many candles have been scored."""
        return int(self.tallies[False].candles)

    def add(self, scored: Scored) -> None:
        """Take the next scored candle."""
        row = scored.row()
        if self.tallies[True].candles == 0:
            self.first_live = self.candles
        self._ring[self.candles % self.capacity] = row
        tally, differences = Tally.of(row[None]), _differences(row[None])
        for live_only in (False, True) if scored.live else (False,):
            self.tallies[live_only].add(tally)
            self.wealth[live_only].add(differences)

    def card(self, window: ScoreWindow = None, live: bool = False) -> dict[str, Any]:
        """Give the contract's Score over a window, JSON-ready.

        Of a fading score accuracy interval and verdict are those of the candles that fade, each counted once: a test
        that forgets would not stay valid. Raises ValueError for a window outside 1..capacity.
        """
        if window is None:
            return self._card("all", self.tallies[live], self.wealth[live], self.first_live if live else 0)
        rows = self._last(self.capacity if window == "fading" else window, live)
        tally, start = Tally.of(rows), self.candles - len(rows)
        card = self._card(window, tally, _wealth(rows), start)
        if window == "fading" and len(rows):
            ages = np.arange(len(rows) - 1, -1, -1)
            card |= _measures(Tally.of(rows, 0.5 ** (ages / HALF_LIFE)))
        return card

    def short(self, window: int) -> dict[str, Any]:
        """Give a few figures over the last ``window`` candles, cheap enough for every candle."""
        rows = self._last(window, live=False)
        tally = Tally.of(rows)
        model, majority, network = (tally.forecaster(_PLACE[name]) for name in ("model", "majority", "network"))
        return {
            "window": window, "candles": len(rows), "verdict": _wealth(rows).verdict(self.candles - len(rows)),
            "accuracy": model["accuracy"], "balanced_accuracy": model["balanced_accuracy"],
            "log_loss": model["log_loss"], "interval_coverage": tally.mean(_COVERED),
            "majority_accuracy": majority["accuracy"], "majority_log_loss": majority["log_loss"],
            "network_log_loss": network["log_loss"],
        }  # fmt: skip

    def rows(self) -> Rows:
        """Read the kept rows in order."""
        kept = min(self.candles, self.capacity)
        return self._ring[np.arange(self.candles - kept, self.candles) % self.capacity]

    def state_dict(self) -> dict[str, Any]:
        return {
            "tallies": [self.tallies[live].state_dict() for live in (False, True)],
            "wealth": [self.wealth[live].state_dict() for live in (False, True)],
            "first_live": self.first_live,
            "rows": torch.from_numpy(self._ring[: min(self.candles, self.capacity)].copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for live in (False, True):
            self.tallies[live].load_state_dict(state["tallies"][live])
            self.wealth[live].load_state_dict(state["wealth"][live])
        self.first_live = state["first_live"]
        rows = state["rows"].numpy()
        self._ring[: len(rows)] = rows

    def _last(self, window: int, live: bool) -> Rows:
        if not 1 <= window <= self.capacity:
            raise ValueError(f"window was {window}, not within 1..{self.capacity}")
        if live:
            rows = self.rows()
            return rows[rows[:, _LIVE] > 0][-window:]
        return self._ring[np.arange(max(self.candles - window, 0), self.candles) % self.capacity]

    def _card(self, window: int | str, tally: Tally, wealth: Wealth, start: int) -> dict[str, Any]:
        count = int(tally.candles)
        interval = accuracy_interval(tally.hits[0].sum(), count, start)
        return {"market": self.market, "window": window, "candles": count} | _measures(tally) | {
            "accuracy_interval": list(interval) if interval else None,
            "verdict": wealth.verdict(start),
        }  # fmt: skip


def _measures(tally: Tally) -> dict[str, Any]:
    model = tally.model()
    scores = {name: tally.forecaster(number) for number, name in enumerate(FORECASTERS)}
    return {
        "moved": 1 - (tally.share(FLAT) or 0.0) if tally.candles else None,
        "share": {name: tally.share(label) for label, name in enumerate(DIRECTIONS)},
        "model": model,
        "members": {name: scores[name] for name in ("skip", "network")},
        "baselines": {name: scores[name] for name in BASELINES} | {"persistence": tally.persistence()},
        "skill": {name: _skill(model["log_loss"], scores[name]["log_loss"]) for name in BASELINES},
    }


def _wealth(rows: Rows) -> Wealth:
    wealth = Wealth(len(BASELINES))
    wealth.add(_differences(rows))
    return wealth


def _differences(rows: Rows) -> Vector:
    """Baseline losses minus the model's, (n, BASELINES)."""
    losses = rows[:, _LOSS : _LOSS + 1 + len(BASELINES)].astype(np.float64)
    return np.asarray(losses[:, 1:] - losses[:, :1])


def _skill(loss: float | None, other: float | None) -> float | None:
    return 1 - loss / other if loss is not None and other else None
