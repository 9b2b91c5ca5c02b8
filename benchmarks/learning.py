"""The learner beside simpler ones on the same candles: ``python -m benchmarks.learning FILE... --limit 20100``.

Every row is scored test-then-train on the dense grid: log loss in nats and accuracy of the direction probabilities that
were given before the candle was seen. Beside the product's own baselines stand river's online softmax regression on
the product's features, and a plain PyTorch loop (a small network on the last 32 returns, Adam, one step a candle).
Prints a table and writes JSON to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from river import linear_model, optim, preprocessing

from models.config import LearnerConfig
from models.features import EVEN_NAMES, ODD_NAMES, Vector
from models.grid import fill_gaps
from models.label import direction_index
from models.learner import Learner
from service.feed.replay import finest_tick, read_candles

ROOT = Path(__file__).parent
DATA = ROOT.parent.parent / "shared" / "data"
FILES = ("candles-binance-spot-ETHUSDT-2019-06-01_02.csv.gz", "candles-binance-spot-ETHUSDT-2019-06-07.csv.gz")


class Rival(Protocol):
    """Another online forecaster: direction probabilities (3,) from the newest candle, then what followed."""

    def predict(self, features: Vector, move: float) -> Vector: ...
    def learn(self, label: int) -> None: ...


class RiverSoftmax:
    """river's online softmax regression on the product's features, standardised."""

    def __init__(self) -> None:
        self._model = preprocessing.StandardScaler() | linear_model.SoftmaxRegression(optim.AdaGrad(0.05))
        self._features: dict[str, float] = {}

    def predict(self, features: Vector, move: float) -> Vector:
        """Give probabilities; move is not used."""
        self._features = dict(zip(ODD_NAMES + EVEN_NAMES, features.tolist(), strict=True))
        given = self._model.predict_proba_one(self._features)
        values = np.array([given.get(label, 0.0) for label in range(3)]) + 1e-4
        return np.asarray(values / values.sum())

    def learn(self, label: int) -> None:
        """Take the direction that followed."""
        self._model.learn_one(self._features, label)


class PlainTorch:
    """What one writes first in PyTorch: a small network on the last 32 returns, Adam, one step on the newest candle."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3)
        self._moves: deque[float] = deque([0.0] * 32, 32)
        self._logits = torch.zeros(3)

    def predict(self, features: Vector, move: float) -> Vector:
        """Give probabilities; features are not used."""
        self._moves.append(move)
        self._logits = self._model(torch.tensor(self._moves))
        return torch.softmax(self._logits.detach().double(), 0).numpy()

    def learn(self, label: int) -> None:
        """Take the direction that followed."""
        self._optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self._logits, torch.tensor(label)).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


@dataclass(slots=True)
class Tally:
    """Sums of one rival, and what it ``said`` of the next candle."""

    said: Vector = field(default_factory=lambda: np.full(3, 1 / 3))
    candles: int = 0
    loss: float = 0.0
    hits: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Give its line of the table."""
        count = max(self.candles, 1)
        return {
            "log_loss": self.loss / count,
            "accuracy": self.hits / count,
            "ms_per_candle": self.seconds / count * 1000,
        }


@dataclass(slots=True)
class Race:
    """The learner and its rivals on one stream."""

    learner: Learner
    rivals: dict[str, Rival]
    tallies: dict[str, Tally] = field(default_factory=dict)
    own_seconds: float = 0.0

    def run(self, file: Path, limit: int | None) -> None:
        """Let everybody predict and learn the candles of a file in order."""
        config, close = self.learner.config, None
        self.tallies = {name: Tally() for name in self.rivals}
        for candle in islice(fill_gaps(read_candles(file, config.market), config.interval_ms), limit):
            before = time.process_time()
            self.learner.predict(candle, candle.open_time + config.interval_ms)
            scored = self.learner.learn(candle).step.loss is not None
            self.own_seconds += time.process_time() - before
            made = self.learner.newest
            assert made is not None
            label = None if close is None or not scored else direction_index(close, candle.close, config.tick)
            move = 0.0 if close is None else (candle.close - close) / made.features.scale
            close = candle.close
            for name, rival in self.rivals.items():
                _turn(self.tallies[name], rival, label, made.features.joined, move)

    def table(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Go through everybody's line, the published mixture first."""
        card = self.learner.score(None, False)
        own = {"ms_per_candle": self.own_seconds / max(card["candles"], 1) * 1000}
        yield "published mixture", card["model"] | own
        for name, row in (card["members"] | card["baselines"]).items():
            yield name, row
        for name, tally in self.tallies.items():
            yield name, tally.row()


def _turn(tally: Tally, rival: Rival, label: int | None, features: Vector, move: float) -> None:
    """Score and teach what the rival said one candle ago, then let it speak about the next."""
    started = time.process_time()
    if label is not None:
        given = tally.said
        tally.candles += 1
        tally.loss -= math.log(max(given[label], 1e-12))
        tally.hits += int(given.argmax()) == label
        rival.learn(label)
    tally.said = rival.predict(features, move)
    tally.seconds += time.process_time() - started


def compare(file: Path, limit: int | None, seed: int) -> dict[str, Any]:
    """Run everybody over one file; JSON-ready."""
    config = LearnerConfig("benchmark:file", tick=finest_tick(file), seed=seed)
    race = Race(Learner(config), {"river softmax": RiverSoftmax(), "plain PyTorch": PlainTorch(seed)})
    race.run(file, limit)
    card, steps = race.learner.score(None, False), max(race.learner.step, 1)
    return {
        "file": file.name,
        "limit": limit,
        "candles": card["candles"],
        "share": card["share"],
        "config": asdict(config),
        "clip_rate": race.learner.stepper.clipped / steps,
        "skips": dict(race.learner.skips),
        "ece": card["model"]["ece"],
        "interval_coverage": card["model"]["interval_coverage"],
        "trend_accuracy": card["model"]["trend_accuracy"],
        "verdict": card["verdict"],
        "rows": dict(race.table()),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print one file's table, best first."""
    limit = f", first {result['limit']}" if result["limit"] else ""
    table = Table(title=f"{result['file']}{limit}: {result['candles']} candles, seed {result['config']['seed']}")
    for column in ("forecaster", "log loss", "accuracy", "CPU ms per candle"):
        table.add_column(column, justify="left" if column == "forecaster" else "right")
    for name, row in sorted(result["rows"].items(), key=lambda item: item[1]["log_loss"] or math.inf):
        values = (row["log_loss"], row["accuracy"], row.get("ms_per_candle"))
        table.add_row(name, *("" if v is None else f"{v:.{d}f}" for v, d in zip(values, (4, 4, 2), strict=True)))
    console.print(table)
    console.print(
        f"clip rate {result['clip_rate']:.4f}, skips {result['skips']}, ECE {result['ece']:.4f}, "
        f"coverage {result['interval_coverage']:.3f}, verdict {result['verdict']}"
    )


def main() -> None:
    """Read the command line, run, print, write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="*", type=Path, default=[DATA / name for name in FILES])
    options.add_argument("--limit", type=int, default=20_100, help="candles of the dense grid of each file; 0: all")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    results = []
    for file in chosen.files:
        if not file.exists():
            print(f"left out: there is no {file}")
            continue
        results.append(compare(file, chosen.limit or None, chosen.seed))
        show(results[-1], Console())
    target = ROOT / "results" / "learning.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1, allow_nan=False))


if __name__ == "__main__":
    main()
