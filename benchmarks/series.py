"""Series: one public multivariate set on its z-scores, and what a forecaster may know at each of its rows.

Everything at row t is made of rows 0..t and of the clock of row t + 1, which is the row to be forecast.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

WINDOW = 12
"""Newest rows that the branch reads."""
HARMONICS = 12
RECENT = 4
"""Moves before the newest row that are inputs one by one."""
FAR = (16, 20, 24, 30, 36, 47, 48, 59)
"""Rows back, within the papers' look-back of 60, whose distance to the newest row is an input."""
SOFT = 3.0
"""Inputs are bent to within this many typical moves: in ETTh2's test the levels wander 12 deviations away."""


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers: train is [0, train), validation [train, validation), test [validation, test)."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True, slots=True)
class Series:
    """A set of T rows and C variables; ``day`` is its rows a day, row 0 is at midnight."""

    name: str
    values: Array
    """(T, C), z-scored with mean and population deviation of the train slice."""
    split: Split
    day: int

    @property
    def typical(self) -> Array:
        """Root mean square (C,) of the moves from row to row within the train slice, in z-scores."""
        moves = np.diff(self.values[: self.split.train], axis=0)
        return np.asarray(np.sqrt((moves**2).mean(axis=0)))


def etth2(rows: int) -> Split:
    """Split as the papers' code splits every ETT set: by these row numbers, whatever a row's length."""
    return Split(2_880, 3_600, min(14_400, rows))


def wth(rows: int) -> Split:
    """Split 20 / 5 / 75 %."""
    return Split(int(rows * 0.2), rows - int(rows * 0.75), rows)


SETS: dict[str, tuple[Callable[[int], Split], int]] = {"ETTh2": (etth2, 24), "ETTm1": (etth2, 96), "WTH": (wth, 24)}
"""Set to its split and rows a day. All three are regular and begin at midnight."""


def read(folder: Path, name: str) -> Series:
    """Read ``name``.csv.gz: a header, then a date and C numbers a row. FileNotFoundError where it is absent."""
    split_of, day = SETS[name]
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as lines:
        rows = csv.reader(lines)
        next(rows)
        raw = np.array([row[1:] for row in rows], dtype=np.float64)
    return series_of(name, raw, split_of(len(raw)), day)


def series_of(name: str, raw: Array, split: Split, day: int) -> Series:
    """Z-score raw values (T, C) by the train slice and leave out the rows after the test."""
    train = raw[: split.train]
    return Series(name, (raw[: split.test] - train.mean(axis=0)) / train.std(axis=0), split, day)


def inputs(series: Series) -> Array:
    """Make the skip's inputs (T, K), scaled to a squared length of about 1 by the train slice.

    Distances and moves are in typical moves of their variable, levels in z-scores.
    """
    values, day = series.values, series.day
    move, level = _moves(series), np.tanh(values)
    pairs = np.triu_indices(values.shape[1], 1)
    table = {
        "clock": clock(series),
        "the last moves": np.concatenate([soft(_before(move, k)) for k in range(RECENT)], axis=1),
        "size of the last move": np.abs(soft(move)),
        "where it stood a day before the next row": _away(series, day - 1, 2.0),
        "its move a day before the next row": soft(_before(move, day - 1)),
        "where it stood before": np.concatenate([_away(series, k, 3.0) for k in FAR], axis=1),
        "level": soft(values),
        "level, bounded": level,
        "level, bounded, squared": level**2,
        "products of levels": level[:, pairs[0]] * level[:, pairs[1]],
    }
    columns = np.concatenate(list(table.values()), axis=1)
    size = np.sqrt((columns[first_row(series) : series.split.train - 1] ** 2).mean(axis=0))
    return np.asarray(columns / np.where(size > 0, size, 1.0) / np.sqrt(columns.shape[1]))


def tokens(series: Series) -> tuple[Array, Array]:
    """Make the branch's tokens, even (T, 2C + 2) and odd (T, C): one row each; a window is WINDOW of them."""
    move = soft(_moves(series))
    day_hand = clock(series)[:, 1:3]
    return np.concatenate([np.tanh(series.values), np.abs(move), day_hand], axis=1), move


def clock(series: Series) -> Array:
    """Make 1 and the harmonics (T, 2 HARMONICS or one more) of the time of day of the row after each row."""
    turn = 2 * np.pi * (np.arange(len(series.values)) + 1)[:, None] / series.day * np.arange(1, HARMONICS + 1)
    sines = np.sin(turn)[:, : -1 if series.day == 2 * HARMONICS else None]  # the sine of half a day's row is 0
    return np.concatenate([np.ones((len(turn), 1)), np.cos(turn[:, :1]), sines, np.cos(turn[:, 1:])], axis=1)


def first_row(series: Series) -> int:
    """Tell the first row whose inputs reach back over real rows only."""
    return max(series.day, max(FAR)) + 1


def soft(values: Array) -> Array:
    """Bend values smoothly to within ± SOFT."""
    return np.asarray(SOFT * np.tanh(values / SOFT))


def _moves(series: Series) -> Array:
    return (series.values - _before(series.values, 1)) / series.typical


def _away(series: Series, rows: int, bend: float) -> Array:
    return soft((_before(series.values, rows) - series.values) / series.typical / bend)


def _before(values: Array, rows: int) -> Array:
    """Shift rows down; the first one stands for those before it."""
    return np.concatenate([np.repeat(values[:1], rows, axis=0), values[: len(values) - rows]])
