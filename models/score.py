"""Score: the test-then-train scorecard, over the whole run and over windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.experts import BASELINES
from models.features import Vector
from models.label import FLAT
from models.panel import FORECASTERS
from models.records import DIRECTIONS
from models.verdict import Wealth, accuracy_interval

SCORE_WINDOW_MAX = 14_400
BINS = 10
_LABEL, _LIVE, _CONFIDENCE, _COVERED, _ERROR, _PERSISTENCE, _TREND = range(7)
_LOSS = 7
_CHOICE = _LOSS + len(FORECASTERS)
_BRIER = _CHOICE + len(FORECASTERS)
COLUMNS = _BRIER + len(FORECASTERS)

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
        trend = np.nan if self.trend is None else float(self.trend)
        head = (self.label, self.live, given[0].max(), self.covered, self.error, self.persistence, trend)
        return np.concatenate((head, losses, given.argmax(axis=1), brier)).astype(np.float32)


class Tally:
    """Sums over scored candles from which every measure follows."""

    def __init__(self) -> None:
        self.candles = 0
        self.labels = np.zeros(3)
        self.hits = np.zeros((len(FORECASTERS), 3))  # by label
        self.sums = np.zeros(COLUMNS)
        self.trends = np.zeros(2)  # came due, were right
        self.bins = np.zeros((BINS, 3))  # candles, confidence, hits

    def add(self, rows: Rows) -> None:
        """Add the rows (n, COLUMNS) of some candles."""
        table = rows.astype(np.float64)
        labels = table[:, _LABEL].astype(int)
        hits = table[:, _CHOICE:_BRIER] == labels[:, None]
        self.candles += len(table)
        self.labels += np.bincount(labels, minlength=3)
        for label in range(3):
            self.hits[:, label] += hits[labels == label].sum(axis=0)
        trends = table[:, _TREND]
        known = ~np.isnan(trends)
        self.trends += (known.sum(), trends[known].sum())
        self.sums += np.where(np.isnan(table), 0, table).sum(axis=0)
        place = np.minimum((table[:, _CONFIDENCE] * BINS).astype(int), BINS - 1)
        np.add.at(self.bins, place, np.column_stack((np.ones(len(table)), table[:, _CONFIDENCE], hits[:, 0])))

    def share(self, label: int) -> float | None:
        """Give the share of candles that went one way."""
        return self._mean(self.labels[label])

    def forecaster(self, number: int) -> dict[str, Any]:
        """Give the direction measures of one forecaster."""
        seen = self.labels > 0
        return {
            "accuracy": self._mean(self.hits[number].sum()),
            "balanced_accuracy": float((self.hits[number][seen] / self.labels[seen]).mean()) if seen.any() else None,
            "log_loss": self._mean(self.sums[_LOSS + number]),
            "brier": self._mean(self.sums[_BRIER + number]),
        }

    def model(self) -> dict[str, Any]:
        """Give every measure of what was published."""
        repeat = self._mean(self.hits[FORECASTERS.index("repeat")].sum())
        own = self.forecaster(0)
        due, right = self.trends
        return own | {
            "ece": self._ece(),
            "kappa_t": (own["accuracy"] - repeat) / (1 - repeat) if repeat is not None and repeat < 1 else None,
            "trend_accuracy": float(right / due) if due else None,
            "trend_candles": int(due),
            "interval_coverage": self._mean(self.sums[_COVERED]),
            "close_mae": self._mean(self.sums[_ERROR]),
        }

    def persistence(self) -> dict[str, Any]:
        """Give the measures of the last price; it names no probabilities, so it has no log loss."""
        return {"accuracy": self.share(FLAT), "log_loss": None, "close_mae": self._mean(self.sums[_PERSISTENCE])}

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name) for name in ("labels", "hits", "sums", "trends", "bins")}
        return {"candles": self.candles} | {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.candles = state["candles"]
        for name in ("labels", "hits", "sums", "trends", "bins"):
            setattr(self, name, state[name].numpy().copy())

    def _mean(self, total: Any) -> float | None:
        return float(total / self.candles) if self.candles else None

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
        return self.tallies[False].candles

    def add(self, scored: Scored) -> None:
        """Take the next scored candle."""
        row = scored.row()
        if self.tallies[True].candles == 0:
            self.first_live = self.candles
        self._ring[self.candles % self.capacity] = row
        for live_only in (False, True) if scored.live else (False,):
            self.tallies[live_only].add(row[None])
            self.wealth[live_only].add(_differences(row[None]))

    def card(self, window: int | None = None, live: bool = False) -> dict[str, Any]:
        """Give the contract's Score over the last ``window`` candles, None for all, JSON-ready.

        Raises ValueError for a window outside 1..capacity.
        """
        if window is None:
            return self._card("all", self.tallies[live], self.wealth[live], self.first_live if live else 0)
        if not 1 <= window <= self.capacity:
            raise ValueError(f"window was {window}, not within 1..{self.capacity}")
        rows = self.rows()
        if live:
            rows = rows[rows[:, _LIVE] > 0]
        rows = rows[-window:]
        tally, wealth = Tally(), Wealth(len(BASELINES))
        if len(rows):
            tally.add(rows)
            wealth.add(_differences(rows))
        return self._card(window, tally, wealth, self.candles - len(rows))

    def rows(self) -> Rows:
        """Read the kept rows in order."""
        if self.candles <= self.capacity:
            return self._ring[: self.candles]
        place = self.candles % self.capacity
        return np.concatenate((self._ring[place:], self._ring[:place]))

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

    def _card(self, window: int | str, tally: Tally, wealth: Wealth, start: int) -> dict[str, Any]:
        model = tally.model()
        scores = {name: tally.forecaster(number) for number, name in enumerate(FORECASTERS)}
        baselines = {name: scores[name] for name in BASELINES} | {"persistence": tally.persistence()}
        count = tally.candles
        interval = accuracy_interval(tally.hits[0].sum(), count, start)
        return {
            "market": self.market,
            "window": window,
            "candles": count,
            "moved": 1 - (tally.share(FLAT) or 0.0) if count else None,
            "share": {name: tally.share(label) for label, name in enumerate(DIRECTIONS)},
            "model": model,
            "members": {name: scores[name] for name in ("skip", "network")},
            "baselines": baselines,
            "skill": {name: _skill(model["log_loss"], scores[name]["log_loss"]) for name in BASELINES},
            "accuracy_interval": list(interval) if interval else None,
            "verdict": wealth.verdict(start),
        }


def _differences(rows: Rows) -> Vector:
    """Baseline losses minus the model's, (n, BASELINES)."""
    losses = rows[:, _LOSS : _LOSS + 1 + len(BASELINES)].astype(np.float64)
    return np.asarray(losses[:, 1:] - losses[:, :1])


def _skill(loss: float | None, other: float | None) -> float | None:
    return 1 - loss / other if loss is not None and other else None
