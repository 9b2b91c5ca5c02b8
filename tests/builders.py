"""Builders of records: a test names only what matters to it."""

from __future__ import annotations

from typing import Any

from models.candle import Candle
from models.records import Prediction, Step, Trend
from service.ports import Checkpoint, RecordBatch

MARKET = "simulated:ETH/USDT"
START = 1_700_000_000_000
SECOND = 1000


def at(index: int) -> int:
    """Return the open time of the candle with this index."""
    return START + index * SECOND


def make_candle(index: int = 0, **changes: Any) -> Candle:
    """Return a valid candle; prices differ from index to index."""
    price = 1900.0 + (index % 100) * 0.01
    values: dict[str, Any] = {
        "open": price,
        "high": price + 0.5,
        "low": price - 0.5,
        "close": price + 0.1,
        "volume": 1.5 + index % 7,
    }
    return Candle(**({"market": MARKET, "open_time": at(index), **values} | changes))


def make_prediction(index: int = 0, **changes: Any) -> Prediction:
    """Return a prediction for the candle with this index."""
    values: dict[str, Any] = {
        "market": MARKET,
        "open_time": at(index),
        "made_at": at(index) + 12,
        "step": index,
        "p_down": 0.1 + 0.2,
        "p_flat": 0.2,
        "p_up": 0.5,
        "direction": "up",
        "close": 1900.1,
        "close_low": 1899.9,
        "close_high": 1900.3,
        "trend": Trend(60, 2 / 3),
        "weights": {"network": 1 / 3, "markov": 2 / 3},
    }
    return Prediction(**(values | changes))


def make_step(index: int = 0, **changes: Any) -> Step:
    """Return a step on the candle with this index."""
    values: dict[str, Any] = {
        "market": MARKET,
        "open_time": at(index),
        "source": "live",
        "step": index,
        "loss": 1.0 + index / 7,
        "train_loss": 0.9,
        "correct": index % 2 == 0,
        "trend_correct": None,
        "direction": "up",
        "label": "up",
        "grad_norm": 2.5,
        "grad_norm_clipped": 1.0,
        "clipped": True,
        "skipped": None,
        "learning_rate": 1e-3,
        "infer_ms": 0.7,
        "train_ms": 2.1,
        "lag_ms": 30.5,
        "queue_depth": 0,
    }
    return Step(**(values | changes))


def make_batch(first: int = 0, count: int = 1) -> RecordBatch:
    """Return ``count`` consecutive candles with their steps and the predictions that followed them."""
    indexes = range(first, first + count)
    return RecordBatch(
        candles=[make_candle(index) for index in indexes],
        predictions=[make_prediction(index + 1) for index in indexes],
        steps=[make_step(index) for index in indexes],
    )


def make_checkpoint(index: int = 0, loss: float | None = 1.0, data: bytes = b"weights") -> Checkpoint:
    """Return a checkpoint taken after the candle with this index."""
    return Checkpoint(open_time=at(index), step=index, created_at=at(index) + 5, loss=loss, data=data)
