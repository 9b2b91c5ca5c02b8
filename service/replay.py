"""Run the learner over a candle file exactly as live: no network, no server, the same learner code."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from models.candle import Candle
from models.checkpoint import DamagedCheckpoint, IncompatibleState, load_state
from models.config import LearnerConfig
from models.learner import Learner
from models.records import Step, TrendOutcome
from service.csv_cells import cells, columns
from service.out_file import cannot_write
from service.ports import ConfigurationError


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay ended with; ``score`` is as GET /score answers for the whole run."""

    candles: int
    seconds: float
    score: dict[str, Any]


def replay(candles: Iterable[Candle], learner: Learner, steps_file: Path | None = None) -> Replayed:
    """Predict, score and learn every candle in order; writes every Step as CSV where asked."""
    started, count = time.perf_counter(), 0
    with ExitStack() as stack:
        writer = stack.enter_context(StepWriter(steps_file)) if steps_file else None
        for step, trend in steps(candles, learner):
            count += 1
            if writer:
                writer.write(step, trend)
    return Replayed(count, time.perf_counter() - started, learner.score(None, False))


def steps(candles: Iterable[Candle], learner: Learner) -> Iterator[tuple[Step, TrendOutcome | None]]:
    """Yield each candle's Step with its timings, and the trend that came due with it."""
    for candle in candles:
        began = time.perf_counter()
        learner.predict(candle, candle.open_time + learner.config.interval_ms)
        predicted = time.perf_counter()
        learned = learner.learn(candle)
        ended = time.perf_counter()
        # Rounded as live, where the learner's process measures.
        infer_ms, train_ms = (round(seconds * 1000, 4) for seconds in (predicted - began, ended - predicted))
        yield replace(learned.step, infer_ms=infer_ms, train_ms=train_ms), learned.trend


class StepWriter:
    """Writes Steps as CSV; each waits in memory until its trend is known, at most ``horizon`` candles.

    Raises LivewickError when the file cannot be written.
    """

    def __init__(self, path: Path, horizon: int = 86_400) -> None:
        self._path = path
        self._horizon = horizon
        self._waiting: dict[int, Step] = {}

    def __enter__(self) -> StepWriter:
        with cannot_write(self._path):
            self._file = self._path.open("w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file)
        self._csv.writerow(columns(Step))
        return self

    def __exit__(self, *exc: object) -> None:
        with cannot_write(self._path), self._file:
            self._flush(0)

    def write(self, step: Step, trend: TrendOutcome | None) -> None:
        if trend is not None and trend.open_time in self._waiting:
            self._waiting[trend.open_time] = replace(self._waiting[trend.open_time], trend_correct=trend.correct)
            with cannot_write(self._path):
                self._flush_until(trend.open_time)
        self._waiting[step.open_time] = step
        with cannot_write(self._path):
            self._flush(self._horizon)

    def _flush_until(self, open_time: int) -> None:
        for known in [waiting for waiting in self._waiting if waiting <= open_time]:
            self._csv.writerow(cells(self._waiting.pop(known)))

    def _flush(self, keep: int) -> None:
        while len(self._waiting) > keep:
            self._csv.writerow(cells(self._waiting.pop(next(iter(self._waiting)))))


def make_learner(config: LearnerConfig, pretrained: bytes | None = None) -> Learner:
    """Make a learner on one thread, as the service's learner process does: bit-equal numbers.

    Raises ConfigurationError when the pretrained state is damaged or of another configuration.
    """
    torch.set_num_threads(1)
    if config.device == "auto":
        config = replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    learner = Learner(config)
    if pretrained is not None:
        try:
            learner.load_state_dict(load_state(pretrained))
        except (DamagedCheckpoint, IncompatibleState) as error:
            raise ConfigurationError(f"the pretrained state cannot be used: {error}") from None
    return learner
