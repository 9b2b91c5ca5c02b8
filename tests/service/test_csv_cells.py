"""CSV cells: read back as the same bits, and the words of JSON."""

from __future__ import annotations

import math

import pytest

from models.candle import Candle
from models.records import Prediction, Step
from service.csv_cells import cell, cells, columns
from tests.builders import make_prediction, make_step


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (math.nan, ""),
        (-math.inf, ""),
        (3, "3"),
        ("up", "up"),
        (0.1 + 0.2, "0.30000000000000004"),
        ({"a": 0.5, "b": 1.0}, '{"a":0.5,"b":1.0}'),
    ],
)
def test_a_cell_is_written_as_in_json_and_empty_for_null(value: object, text: str) -> None:
    assert cell(value) == text


@pytest.mark.parametrize("number", [5e-324, 1e-5, 1 / 3, 1.7976931348623157e308, -0.0, 1e16])
def test_a_float_reads_back_as_the_same_bits(number: float) -> None:
    assert float(cell(number)).hex() == number.hex()


def test_the_columns_are_the_contracts_fields_with_the_trend_made_flat() -> None:
    assert columns(Candle) == ("market", "open_time", "open", "high", "low", "close", "volume", "source")
    assert columns(Prediction)[10:] == ("close_high", "trend_horizon", "trend_p_up", "weights", "simulated")
    assert columns(Step)[-4:] == ("infer_ms", "train_ms", "lag_ms", "queue_depth")


def test_a_row_has_a_cell_for_each_column() -> None:
    prediction = dict(zip(columns(Prediction), cells(make_prediction(1)), strict=True))
    assert (prediction["trend_horizon"], prediction["simulated"]) == ("60", "false")
    step = dict(zip(columns(Step), cells(make_step(1, trend_correct=None, clipped=True)), strict=True))
    assert (step["trend_correct"], step["clipped"]) == ("", "true")
