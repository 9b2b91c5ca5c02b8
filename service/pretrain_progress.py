"""Progress of ``livewick pretrain`` at a terminal: a bar for the first pass, a bar and a line for each epoch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from models.pretrain import Batch, Epoch, Passed
from models.pretrain import Progress as OnProgress


@contextmanager
def shown(epochs: int) -> Iterator[OnProgress]:
    """Lend the callback that draws what ``pretrain`` tells, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        first = bar.add_task("first pass", total=None)
        batches = bar.add_task("epochs", total=None)

        def tell(event: Passed | Batch | Epoch) -> None:
            match event:
                case Passed(candles, total):
                    bar.update(first, completed=candles, total=total)
                case Batch(epoch, number, count, loss):
                    text = "skipped" if loss is None else f"loss {loss:.4f}"
                    bar.update(batches, completed=number, total=count, description=f"epoch {epoch}/{epochs} {text}")
                case Epoch():
                    console.print(summary(event))

        yield tell


def summary(epoch: Epoch) -> str:
    """Say in one line how an epoch went."""
    trend = "-" if epoch.trend_accuracy is None else f"{epoch.trend_accuracy:.1%}"
    return (
        f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, held out {epoch.held_out_loss:.4f} "
        f"(skip alone {epoch.skip_loss:.4f}), candle accuracy {epoch.candle_accuracy:.1%}, trend accuracy {trend}"
        + (" - best so far" if epoch.best else "")
    )
