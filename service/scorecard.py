"""The scorecard of a Score, for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

VERDICTS = {
    "better": "[green]better[/] than the best simple baseline",
    "worse": "[red]worse[/] than the best simple baseline",
    "undecided": "[yellow]undecided[/]: not yet told apart from the best simple baseline",
}


def print_scorecard(score: dict[str, Any], console: Console) -> None:
    """Print model and baselines side by side, best log loss first, and the verdict."""
    share = ", ".join(f"{name} {_percent(value)}" for name, value in score["share"].items())
    console.print(
        f"[bold]{score['market']}[/], {score['candles']:,} candles scored, {_percent(score['moved'])} moved ({share})"
    )
    table = Table(show_edge=False, header_style="bold")
    for name in ("", "log loss", "skill", "accuracy"):
        table.add_column(name, justify="left" if not name else "right")
    rows = [("model", score["model"], None)] + [(n, s, score["skill"].get(n)) for n, s in score["baselines"].items()]
    for name, values, skill in sorted(rows, key=lambda row: _order(row[1].get("log_loss"))):
        style = "bold green" if name == "model" else None
        table.add_row(
            name, _number(values.get("log_loss")), _number(skill), _percent(values.get("accuracy")), style=style
        )
    console.print(table)
    model = score["model"]
    console.print(
        f"balanced accuracy {_percent(model['balanced_accuracy'])}, Brier {_number(model['brier'])}, "
        f"ECE {_number(model['ece'])}, trend accuracy {_percent(model['trend_accuracy'])}, "
        f"80 % interval covers {_percent(model['interval_coverage'])}, close MAE {_number(model['close_mae'])}"
    )
    low, high = score["accuracy_interval"] or (None, None)
    console.print(f"accuracy within {_percent(low)} and {_percent(high)}; verdict: {VERDICTS[score['verdict']]}")


def print_windows(scores: Iterable[dict[str, Any]], console: Console) -> None:
    """Print one line each for the latest stretches of the same run: model, best baseline, verdict."""
    for score in scores:
        name, best = min(score["baselines"].items(), key=lambda item: _order(item[1].get("log_loss")))
        stretch = "all, fading" if score["window"] == "fading" else f"last {score['window']:,}"
        console.print(
            f"{stretch}: log loss {_number(score['model']['log_loss'])} ({name} {_number(best.get('log_loss'))}), "
            f"accuracy {_percent(score['model']['accuracy'])}, {score['verdict']}"
        )


def _order(value: float | None) -> float:
    return float("inf") if value is None else value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
