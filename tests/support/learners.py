"""The real Learner behind the LearnerHandle port without a process, and one that dies on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import torch

from models.candle import Candle
from models.checkpoint import DamagedCheckpoint, IncompatibleState, dump_state, load_state
from models.config import LearnerConfig
from models.learner import Learner
from models.records import Learned, Prediction
from service.ports import CheckpointRefused, LearnerHandle, LearnerUnavailable


class InProcessLearner(LearnerHandle):
    """Runs the real learner in this process. ``calls`` is what it was asked, in order.

    ``die_at`` names calls (``"learn 3"``: the learn of the fourth candle) that raise LearnerUnavailable once, before
    anything happened.
    """

    def __init__(self, config: LearnerConfig, die_at: Sequence[str] = ()) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.learner = Learner(config)
        self.calls: list[str] = []
        self.restarts = 0
        self.short_score: dict[str, Any] | None = None
        self.on_restart: Callable[[str], None] = lambda _reason: None
        self._die_at = list(die_at)
        self._first: int | None = None
        self._loaded = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self._loaded.is_set()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def ready(self) -> None:
        await self._loaded.wait()

    async def load(self, checkpoint: bytes | None) -> dict[str, Any]:
        learner = Learner(self.config)
        try:
            if checkpoint is not None:
                learner.load_state_dict(load_state(checkpoint))
        except (DamagedCheckpoint, IncompatibleState) as error:
            raise CheckpointRefused(str(error)) from None
        self.learner = learner
        self._loaded.set()
        return learner.describe()

    async def predict(self, candle: Candle) -> Prediction:
        self._note("predict", candle)
        return self.learner.predict(candle, candle.open_time + 1000)

    async def learn(self, candle: Candle) -> Learned:
        self._note("learn", candle)
        learned = self.learner.learn(candle)
        self.short_score = self.learner.short_score()
        return learned

    async def pause(self) -> None:
        self.learner.pause()

    async def resume(self) -> None:
        self.learner.resume()

    async def checkpoint(self) -> tuple[int | None, int, bytes]:
        return self.learner.last_open_time, self.learner.step, dump_state(self.learner.state_dict())

    async def preview(self, candles: Sequence[Candle]) -> Prediction:
        return self.learner.preview(candles, candles[-1].open_time + 1000)

    async def score(self, window: int | None, live: bool) -> dict[str, Any]:
        return self.learner.score(window, live)

    async def describe(self) -> dict[str, Any]:
        return self.learner.describe()

    def _note(self, method: str, candle: Candle) -> None:
        self._first = candle.open_time if self._first is None else self._first
        call = f"{method} {(candle.open_time - self._first) // 1000}"
        if call in self._die_at:
            self._die_at.remove(call)
            self.restarts += 1
            self.on_restart("asked to")
            raise LearnerUnavailable("the learner died")
        self.calls.append(call)
