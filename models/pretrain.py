"""Pretraining: one pass of a learner over past candles as live, then epochs of its sequence network over all of them.

The linear skip needs no epochs: its Newton steps leave it at the best fit after one pass. The branch is trained in
shuffled batches on what the skip, as it was when it first saw each sample, left over, and judged on a held-out tail.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.candle import Candle
from models.learner import Learner
from models.replay import UNKNOWN, Replay

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """How long and on what: the last ``holdout`` share of the candles only judges; ``patience`` counts epochs."""

    epochs: int = 10
    batch_size: int = 256
    holdout: float = 0.1
    patience: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.patience < 1 or not 0 < self.holdout < 1:
            raise ValueError("epochs, batch_size and patience must be at least 1, holdout between 0 and 1")


@dataclass(frozen=True, slots=True)
class Passed:
    """Progress of the first pass: ``candles`` of ``total`` learned."""

    candles: int
    total: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of an epoch: ``loss`` is None where the step was skipped."""

    epoch: int
    number: int
    batches: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Summary of an epoch: mean batch loss, and on the held-out tail log loss of directions and accuracies.

    ``skip_loss`` is the tail's log loss of the skip alone; ``trend_accuracy`` is None where no trend came due.
    """

    epoch: int
    loss: float
    held_out_loss: float
    skip_loss: float
    candle_accuracy: float
    trend_accuracy: float | None
    best: bool


Progress = Callable[[Passed | Batch | Epoch], None]


def pretrain(
    learner: Learner, candles: Sequence[Candle], config: PretrainConfig, progress: Progress = lambda _: None
) -> list[Epoch]:
    """Train a learner on past candles, after which it stands at the last of them, ready to go on live.

    Raises ValueError with fewer candles than one batch to train or judge on.
    """
    cut = len(candles) - int(len(candles) * config.holdout)
    corpus = Replay(learner.config.candles, capacity=len(candles) + learner.config.candles)
    head = _pass(learner, candles[:cut], corpus, progress, len(candles))
    tail = _pass(_twin(learner), candles[cut:], corpus, progress, len(candles), cut)
    if min(len(head), len(tail)) < config.batch_size:
        raise ValueError(f"{len(candles)} candles are too few to pretrain on with a batch size of {config.batch_size}")
    epochs = _epochs(learner, corpus, head, tail, config, progress)
    _pass(learner, candles[cut:], None, lambda _: None, len(candles))
    return epochs


def _pass(
    learner: Learner, candles: Sequence[Candle], corpus: Replay | None, progress: Progress, total: int, done: int = 0
) -> Rows:
    """Let the learner live through candles and keep its samples in the corpus; gives their rows."""
    rows = []
    for number, candle in enumerate(candles, done + 1):
        learner.predict(candle, candle.open_time + learner.config.interval_ms)
        if corpus is not None and learner.newest is not None:
            corpus.add(learner.newest.features, learner.window.age)
        learner.learn(candle)
        if corpus is not None and corpus.copy_labels(learner.replay, learner.config.trend_horizon + 2):
            rows.append(corpus.count - 2)
        progress(Passed(number, total))
    return np.array(rows, np.int64)


def _twin(learner: Learner) -> Learner:
    twin = Learner(learner.config)
    twin.load_state_dict(learner.state_dict())
    return twin


def _epochs(
    learner: Learner, corpus: Replay, head: Rows, tail: Rows, config: PretrainConfig, progress: Progress
) -> list[Epoch]:
    stepper, random = learner.stepper, np.random.default_rng(config.seed)
    # Epochs that do not improve on the first pass change nothing.
    best = _judged(learner, corpus, tail, 0, np.nan, np.inf).held_out_loss
    best_weights, since_best = copy.deepcopy(stepper.network.branch.state_dict()), 0
    epochs: list[Epoch] = []
    for number in range(1, config.epochs + 1):
        losses = []
        batches = np.array_split(random.permutation(head), max(1, len(head) // config.batch_size))
        for place, rows in enumerate(batches, 1):
            taken = stepper.train_batch(rows, corpus)
            losses += [] if taken.loss is None else [taken.loss]
            progress(Batch(number, place, len(batches), taken.loss))
        epoch = _judged(learner, corpus, tail, number, float(np.mean(losses)) if losses else np.nan, best)
        epochs.append(epoch)
        progress(epoch)
        if epoch.best:
            best, best_weights, since_best = epoch.held_out_loss, copy.deepcopy(stepper.network.branch.state_dict()), 0
        else:
            since_best += 1
        if since_best >= config.patience:
            break
    stepper.network.branch.load_state_dict(best_weights)
    return epochs


def _judged(learner: Learner, corpus: Replay, tail: Rows, number: int, loss: float, best: float) -> Epoch:
    targets = corpus.targets(tail)
    said = np.concatenate([learner.stepper.said(part, corpus) for part in np.array_split(tail, len(tail) // 256 + 1)])
    held_out, accuracy = _direction_scores(said, targets.direction)
    known = targets.trend != UNKNOWN
    right = (said[known, 3] >= 0) == (targets.trend[known] == 1)
    skip_loss, _ = _direction_scores(targets.skip, targets.direction)
    trend = float(right.mean()) if known.any() else None
    return Epoch(number, loss, held_out, skip_loss, accuracy, trend, held_out < best)


def _direction_scores(said: npt.NDArray[np.float32], direction: npt.NDArray[np.int8]) -> tuple[float, float]:
    """Log loss and accuracy of flat and side logits, the first two columns."""
    flat, side = said[:, 0].astype(np.float64), said[:, 1].astype(np.float64)
    logs = np.stack(
        (_log_logistic(-flat) + _log_logistic(-side), _log_logistic(flat), _log_logistic(-flat) + _log_logistic(side)),
        1,
    )
    loss = -logs[np.arange(len(direction)), direction].mean()
    return float(loss), float((logs.argmax(1) == direction).mean())


def _log_logistic(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(-np.logaddexp(0, -values))
