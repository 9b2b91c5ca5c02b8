"""The protocol of the forecasting benchmark, on a small made-up series."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import forecasting
from benchmarks.forecaster import Forecaster, Settings
from benchmarks.forecasting import main, run, slice_of
from benchmarks.series import Array, Series, Split, first_row, series_of, wth
from models.trainer import TrainStep

SPLIT = Split(120, 150, 180)
SETTINGS = Settings(forgetting=0.9996, replays=3, width=8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and threads that wait for a busy core cost seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def raw_values(rows: int = 200, variables: int = 3) -> Array:
    random = np.random.default_rng(4)
    waves = np.sin(2 * np.pi * np.arange(rows)[:, None] / 24 + np.arange(variables))
    return waves * 3 + 0.3 * random.normal(size=(rows, variables)).cumsum(axis=0) + 10


def make_series(raw: Array | None = None) -> Series:
    return series_of("made up", raw_values() if raw is None else raw, SPLIT, day=24)


def forecasts(series: Series, last: int) -> list[Array]:
    """Forecast and learn every row up to ``last``."""
    forecaster, said = Forecaster(series, SETTINGS, seed=0), []
    for row in range(first_row(series), last + 1):
        said.append(forecaster.predict(row))
        forecaster.learn(row)
    return said


def test_changing_every_row_from_t_on_leaves_all_forecasts_up_to_t_bit_identical() -> None:
    t = 160  # the forecast of row t is made at row t - 1
    changed = raw_values()
    changed[t:] = changed[t:] * -7 + 100
    before, after = forecasts(make_series(), t + 1), forecasts(make_series(changed), t + 1)
    upto = t - first_row(make_series())
    np.testing.assert_array_equal(before[:upto], after[:upto])
    assert not np.array_equal(before[upto], after[upto])


def test_z_scores_know_the_train_slice_alone() -> None:
    raw = raw_values()
    series = make_series(raw)
    np.testing.assert_allclose(series.values[:120].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(series.values[:120].std(axis=0), 1)
    raw[120:] += 1e6
    np.testing.assert_array_equal(make_series(raw).values[:120], series.values[:120])


def test_every_row_is_forecast_before_the_step_on_it_and_each_row_has_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    class Recorded(Forecaster):
        def predict(self, row: int) -> Array:
            calls.append(("predict", row))
            return super().predict(row)

        def learn(self, row: int) -> TrainStep:
            calls.append(("learn", row))
            return super().learn(row)

    monkeypatch.setattr(forecasting, "Forecaster", Recorded)
    series = make_series()
    outcome = run(series, SETTINGS, seed=0, part="test")
    rows = [*range(first_row(series), 119), *range(149, 179)]
    assert calls == [(what, row) for row in rows for what in ("predict", "learn")]
    assert outcome.rows == 30


def test_a_test_run_takes_no_step_on_the_validation_slice() -> None:
    visited: list[int] = []

    def track(rows: Sequence[int]) -> Sequence[int]:
        visited.extend(rows)
        return rows

    run(make_series(), SETTINGS, seed=0, part="test", track=track)
    assert 118 in visited  # its step learns row 119, the last of the train slice
    assert not set(range(119, 149)) & set(visited)


def test_forecasting_changes_no_weight_and_a_step_does() -> None:
    series = make_series()
    forecaster = Forecaster(series, SETTINGS, seed=0)
    row = first_row(series)
    start = [weight.clone() for weight in forecaster.network.parameters()]
    forecaster.predict(row)
    assert all(bool((a == b).all()) for a, b in zip(start, forecaster.network.parameters(), strict=True))
    forecaster.learn(row)
    assert not bool((start[0] == next(forecaster.network.parameters())).all())


def test_the_first_forecast_of_an_untaught_forecaster_repeats_the_last_row() -> None:
    series = make_series()
    np.testing.assert_array_equal(Forecaster(series, SETTINGS, 0).predict(100), series.values[100])


def test_the_reported_error_is_the_mean_over_variables_and_rows_of_z_scores() -> None:
    series = make_series()
    outcome = run(series, SETTINGS, seed=0, part="validation")
    low, high = slice_of(series, "validation")
    moves = series.values[low:high] - series.values[low - 1 : high - 1]
    assert outcome.persistence_mse == pytest.approx(float((moves**2).mean()))
    assert 0 < outcome.mse < outcome.persistence_mse  # waves can be learned
    assert outcome.skip_rate == 0


def test_the_splits_are_those_of_the_papers_code() -> None:
    assert wth(35_064) == Split(7_012, 8_766, 35_064)
    assert forecasting.SETS["ETTm1"][0](69_680) == Split(2_880, 3_600, 14_400)


def test_absent_data_is_said_clearly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 1
    assert "no ETTh2.csv.gz in" in capsys.readouterr().out


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forecasting.CHOSEN, "ETTh2", SETTINGS)
    monkeypatch.setitem(forecasting.SETS, "ETTh2", (lambda rows: SPLIT, 24))
    with gzip.open(tmp_path / "ETTh2.csv.gz", "wt") as file:
        file.write("date,a,b,c\n" + "".join(f"2016,{a},{b},{c}\n" for a, b, c in raw_values().tolist()))
    out = tmp_path / "results" / "forecasting.json"
    assert main(["--data", str(tmp_path), "--sets", "ETTh2", "--seeds", "2", "--out", str(out)]) == 0
    result = json.loads(out.read_text())["sets"]["ETTh2"]
    assert len(result["seeds"]) == 2
    assert result["mse"] == pytest.approx(sum(seed["mse"] for seed in result["seeds"]) / 2)
    assert "FSNet" in capsys.readouterr().out
