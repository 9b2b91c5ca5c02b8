"""Replay: the tokens and labels of past candles, from which old samples are drawn to join the newest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.features import EVEN, ODD, Features, token_columns

CAPACITY = 20_000
UNKNOWN = -1
EVEN_TOKEN, ODD_TOKEN = np.array(token_columns(EVEN)), np.array(token_columns(ODD))
TOKEN = len(EVEN_TOKEN) + len(ODD_TOKEN)

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Targets:
    """What followed candle rows, with UNKNOWN where it is not known (yet), and what the skip had said then.

    ``direction`` (B,) is 0, 1, 2; ``move`` (B,) in typical moves; ``trend`` (B,) is 0 or 1; ``skip`` (B, 4) holds the
    skip's flat logit, side logit, move and trend logit from before the label was seen.
    """

    direction: npt.NDArray[np.int8]
    move: npt.NDArray[np.float32]
    trend: npt.NDArray[np.int8]
    skip: npt.NDArray[np.float32]


class Replay:
    """A ring of candle rows, numbered 0, 1, 2 ... for ever; the last CAPACITY are kept.

    Tokens are kept as float16 and read back from here for every use, so a sample is the same numbers whenever it is
    drawn. A row takes 2 TOKEN + 26 bytes.
    """

    def __init__(self, window: int, capacity: int = CAPACITY) -> None:
        self.window, self.capacity = window, capacity
        self.count = 0
        self.tokens = np.zeros((capacity, TOKEN), np.float16)
        self.age = np.zeros(capacity, np.int32)
        self.direction = np.full(capacity, UNKNOWN, np.int8)
        self.move = np.zeros(capacity, np.float32)
        self.trend = np.full(capacity, UNKNOWN, np.int8)
        self.skip = np.zeros((capacity, 4), np.float32)

    def add(self, features: Features, age: int) -> int:
        """Append a candle that is number ``age`` (from 1) of its unbroken run; returns its row number."""
        place = self.count % self.capacity
        self.tokens[place] = token(features)
        self.age[place] = age
        self.direction[place] = self.trend[place] = UNKNOWN
        self.skip[place] = 0
        self.count += 1
        return self.count - 1

    def resolve(self, row: int, direction: int, move: float, skip: tuple[float, float, float, float]) -> None:
        """Tell what followed a row and what the skip had said."""
        place = row % self.capacity
        self.direction[place], self.move[place], self.skip[place] = direction, move, skip

    def resolve_trend(self, row: int, up: bool) -> None:
        """Tell the trend that followed a row, if the row is still kept."""
        if row >= self.count - self.capacity:
            self.trend[row % self.capacity] = up

    def copy_labels(self, other: Replay, behind: int) -> bool:
        """Take over the labels of the newest ``behind`` rows, which ``other`` took too.

        Tells whether the last row but one is labelled by now.
        """
        kept = min(other.count, self.count, behind)
        mine, its = (np.arange(ring.count - kept, ring.count) % ring.capacity for ring in (self, other))
        for name in ("direction", "move", "trend", "skip"):
            getattr(self, name)[mine] = getattr(other, name)[its]
        return bool(kept > 1 and self.direction[mine[-2]] != UNKNOWN)

    def draw(self, number: int, newest: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw rows uniformly, with repetition, from the labelled ones up to ``newest`` whose window is still whole."""
        oldest = max(0, self.count - self.capacity + self.window)
        rows = random.integers(oldest, newest + 1, number)
        labelled: npt.NDArray[np.int64] = rows[self.direction[rows % self.capacity] != UNKNOWN]
        return labelled

    def windows(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Read the tokens (B, window, TOKEN) up to each row; zeros stand before the start of its run."""
        back = np.arange(1 - self.window, 1)
        places = (rows[:, None] + back) % self.capacity
        inside = back > -self.age[rows % self.capacity][:, None]
        tokens: npt.NDArray[np.float32] = self.tokens[places].astype(np.float32) * inside[..., None]
        return tokens

    def targets(self, rows: npt.NDArray[np.int64]) -> Targets:
        """Read the labels of rows."""
        places = rows % self.capacity
        return Targets(self.direction[places], self.move[places], self.trend[places], self.skip[places])

    def state_dict(self) -> dict[str, Any]:
        kept = slice(0, min(self.count, self.capacity))
        arrays = {name: torch.from_numpy(array[kept].copy()) for name, array in self._arrays().items()}
        return {"count": self.count} | arrays

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for name, array in self._arrays().items():
            kept = state[name].numpy()
            array[: len(kept)] = kept

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "tokens": self.tokens, "age": self.age, "direction": self.direction,
            "move": self.move, "trend": self.trend, "skip": self.skip,
        }  # fmt: skip


def token(features: Features) -> npt.NDArray[np.float16]:
    """Pack what the sequence network reads of one candle: even features, then odd ones."""
    return np.concatenate((features.even[EVEN_TOKEN], features.odd[ODD_TOKEN])).astype(np.float16)
