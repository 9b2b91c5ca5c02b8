"""The scorecard at a terminal."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from models.panel import FORECASTERS
from models.score import Score, Scored
from service.scorecard import print_scorecard, print_windows


def score_of(candles: int) -> Score:
    score, given = Score("simulated:ETH/USDT"), np.tile([0.3, 0.4, 0.3], (len(FORECASTERS), 1))
    given[0] = (0.1, 0.2, 0.7)
    for _ in range(candles):
        score.add(Scored(given, 2, live=True, covered=True, error=1.0, persistence=2.0, trend=None))
    return score


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def printed(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_model_and_baselines_stand_side_by_side_best_first() -> None:
    to = console()
    print_scorecard(score_of(400).card(), to)
    lines = printed(to).splitlines()
    assert lines[0].startswith("simulated:ETH/USDT, 400 candles scored, 100.0% moved")
    assert [line.split()[0] for line in lines[3:5]] == ["model", "majority"]
    assert "better than the best simple baseline" in lines[-1]


def test_each_stretch_has_one_line_with_its_best_baseline() -> None:
    to, score = console(), score_of(400)
    print_windows((score.card(window) for window in (300, "fading")), to)
    assert printed(to).splitlines() == [
        "last 300: log loss 0.3567 (majority 1.2040), accuracy 100.0%, better",
        "all, fading: log loss 0.3567 (majority 1.2040), accuracy 100.0%, better",
    ]


def test_without_candles_there_are_dashes() -> None:
    to = console()
    print_scorecard(Score("m").card(), to)
    print_windows([Score("m").card("fading")], to)
    assert "all, fading: log loss - (majority -), accuracy -, undecided" in printed(to)
