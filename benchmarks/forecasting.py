"""Online forecasting on public sets, beside published methods: ``python -m benchmarks.forecasting --seeds 3``.

One step ahead (H = 1) under the protocol of the papers' code: z-scores by the train slice, one pass over the train
slice, then, row by row over the test slice: forecast all variables of the next row, compare, take one training step.
Reported is the mean squared error over variables and test rows. The validation slice is for choosing settings
(``--slice validation``): no weight of a test run has seen it. Prints a table and writes JSON to
``benchmarks/results/``.

Published figures: OneNet, Zhang et al., NeurIPS 2023, Table 2 (it and those above it); LSTD, Cai et al., AAAI 2025,
Table 1 (it); they are for FSNet, Pham et al., ICLR 2023, and the methods around it. That repeating the last row beats
FSNet was first reported in salesforce/fsnet#4. At H > 1 the papers' code trains on values that are not yet known
(fsnet#6): no comparison there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.forecaster import Forecaster, Settings
from benchmarks.series import SETS, Array, Series, first_row, read

ROOT = Path(__file__).parent
DATA = ROOT.parent.parent / "shared" / "data" / "forecasting"
Slice = Literal["validation", "test"]
Track = Callable[[Sequence[int]], Iterable[int]]
"""Goes through rows and shows how far it is."""

CHOSEN = {
    "ETTh2": Settings(forgetting=0.9996),
    "ETTm1": Settings(forgetting=0.9996),
    "WTH": Settings(forgetting=0.9999),
}
"""Chosen on the validation slices, and so were the inputs and the other settings, which all sets share."""
TARGETS = {"ETTh2": 0.330, "ETTm1": 0.0740, "WTH": 0.1450}
PUBLISHED = {
    "Informer": (7.571, 0.456, 0.426),
    "OnlineTCN": (0.502, 0.214, 0.206),
    "ER": (0.508, 0.086, 0.180),
    "DER++": (0.508, 0.083, 0.174),
    "FSNet": (0.466, 0.085, 0.162),
    "PatchTST, online": (0.362, 0.083, 0.162),
    "OneNet": (0.380, 0.082, 0.156),
    "LSTD": (0.377, 0.081, 0.153),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run over one set; ``mse`` of what was forecast, ``skip_mse`` of its linear skip alone; shares in 0..1."""

    mse: float
    skip_mse: float
    persistence_mse: float
    rows: int
    clip_rate: float
    skip_rate: float
    ms_per_sample: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and answer the exit code."""
    options = _parser().parse_args(arguments)
    console = Console()
    absent = [name for name in options.sets if not (options.data / f"{name}.csv.gz").is_file()]
    if absent:
        console.print(f"no {absent[0]}.csv.gz in {options.data}; name the folder with --data", soft_wrap=True)
        return 1
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for outcomes in run_all(options.data, options.sets, options.seeds, options.slice, console):
        options.out.write_text(json.dumps(report(outcomes, options.slice), indent=2) + "\n")
    console.print(table(outcomes, options.slice))
    console.print(f"written to {options.out}", soft_wrap=True)
    return 0


def run_all(
    data: Path, sets: Sequence[str], seeds: int, part: Slice, console: Console
) -> Iterator[dict[str, list[Outcome]]]:
    """Run every set with every seed, a progress bar each, and give what there is after each run."""
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    outcomes: dict[str, list[Outcome]] = {}
    with Progress(*bars, console=console) as progress:
        for name in sets:
            series = read(data, name)
            for seed in range(seeds):
                track = partial(progress.track, description=f"{name}, seed {seed}")
                outcomes.setdefault(name, []).append(run(series, CHOSEN[name], seed, part, track))
                yield outcomes


def run(series: Series, settings: Settings, seed: int, part: Slice, track: Track = iter) -> Outcome:
    """Teach a new forecaster the train slice, then forecast, compare and learn one slice row by row."""
    forecaster = Forecaster(series, settings, seed)
    low, high = slice_of(series, part)
    learned = range(first_row(series), series.split.train - 1)
    judged = range(low - 1, high - 1)
    errors: list[tuple[float, float, float]] = []
    clipped = skipped = 0
    started = time.perf_counter()
    for row in track([*learned, *judged]):
        forecast = forecaster.predict(row)
        if row >= judged.start:
            truth, last = series.values[row + 1], series.values[row]
            errors.append((_mse(forecast, truth), _mse(forecaster.skip_forecast(row), truth), _mse(last, truth)))
        taken = forecaster.learn(row)
        clipped += taken.clipped
        skipped += taken.skipped is not None
    steps = len(learned) + len(judged)
    ms_per_sample = (time.perf_counter() - started) * 1000 / steps
    mse, skip_mse, persistence_mse = (mean(column) for column in zip(*errors, strict=True))
    return Outcome(mse, skip_mse, persistence_mse, len(errors), clipped / steps, skipped / steps, ms_per_sample)


def slice_of(series: Series, part: Slice) -> tuple[int, int]:
    """Tell the first row to be forecast and the one after the last."""
    split = series.split
    return (split.train, split.validation) if part == "validation" else (split.validation, split.test)


def report(outcomes: dict[str, list[Outcome]], part: Slice) -> dict[str, Any]:
    """Put everything into one JSON-ready dict."""
    return {
        "slice": part,
        "horizon": 1,
        "sets": {
            name: {
                "mse": mean(outcome.mse for outcome in runs),
                "target": TARGETS[name],
                "settings": asdict(CHOSEN[name]),
                "seeds": [asdict(outcome) for outcome in runs],
            }
            for name, runs in outcomes.items()
        },
        "published": {name: dict(zip(SETS, figures, strict=True)) for name, figures in PUBLISHED.items()},
    }


def table(outcomes: dict[str, list[Outcome]], part: Slice) -> Table:
    """Lay out own and published figures, a column a set."""
    names, order = list(outcomes), list(SETS)
    shown = Table("MSE, one step ahead", *names, title=f"Online forecasting, {part} slice")

    def add(label: str, cell: Callable[[str], str], style: str | None = None) -> None:
        shown.add_row(label, *(cell(name) for name in names), style=style)

    def average(name: str, figure: str) -> float:
        figures = [float(getattr(outcome, figure)) for outcome in outcomes[name]]
        return mean(figures)

    if part == "test":
        for method, figures in PUBLISHED.items():
            add(method, lambda name, figures=figures: f"{figures[order.index(name)]:.3f}")  # type: ignore[misc]
    add("last row repeated", lambda name: f"{average(name, 'persistence_mse'):.4f}")
    add("Livewick, linear skip alone", lambda name: f"{average(name, 'skip_mse'):.4f}")
    add("Livewick", lambda name: f"{average(name, 'mse'):.4f}", style="bold")
    add("  each seed", lambda name: " ".join(f"{outcome.mse:.4f}" for outcome in outcomes[name]))
    if part == "test":
        add("  to be reached", lambda name: f"{TARGETS[name]:.4f}")
    shown.add_section()
    for field in fields(Settings):
        add(field.name, lambda name, key=field.name: f"{getattr(CHOSEN[name], key):g}")  # type: ignore[misc]
    shown.add_section()
    add("rows forecast", lambda name: f"{outcomes[name][0].rows:,}")
    add("clipped steps", lambda name: f"{average(name, 'clip_rate'):.2%}")
    add("steps left out", lambda name: f"{average(name, 'skip_rate'):.2%}")
    add("ms per sample", lambda name: f"{average(name, 'ms_per_sample'):.2f}")
    return shown


def _mse(forecast: Array, truth: Array) -> float:
    return float(np.square(forecast - truth).mean())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecasting", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of ETTh2.csv.gz, ETTm1.csv.gz, WTH.csv.gz")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, choices=range(1, 100), metavar="N", default=3, help="how many, from 0")
    parser.add_argument("--slice", choices=("validation", "test"), default="test")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "forecasting.json")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
