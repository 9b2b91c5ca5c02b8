"""Is what a service stored, whatever happened to it, what one that was never stopped would have stored?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from models.checkpoint import load_state
from models.config import LearnerConfig
from models.learner import Learner
from models.records import Prediction, Step
from service.storage import SqlCheckpointStore, SqlRecordStore, open_database
from tests.support.processes import Exchange

MARKET = "binance:ETH/USDT"
EVERYTHING = 2**31


def nothing_lost_and_equal_to_the_last_bit(market: Exchange, database_url: str) -> None:
    """Learn what is stored once more, never stopped, and compare every number."""
    stored = asyncio.run(read(database_url))
    times = [candle.open_time for candle in stored["candles"]]
    assert times == list(range(times[0], times[-1] + 1000, 1000)), "a candle is missing or doubled"
    rows = [[c.open_time, c.open, c.high, c.low, c.close, c.volume] for c in stored["candles"]]
    assert rows == market.candles(times[0], times[-1] + 1000)
    assert [step.open_time for step in stored["steps"]] == times
    assert [prediction.open_time for prediction in stored["predictions"]] == [time + 1000 for time in times]

    state = load_state(stored["checkpoint"].data)
    torch.set_num_threads(1)
    learner, saved = (Learner(LearnerConfig(**state["config"])) for _ in range(2))
    at_checkpoint = None
    for candle, told, step in zip(stored["candles"], stored["predictions"], stored["steps"], strict=True):
        prediction = learner.predict(candle, 0)
        learned = learner.learn(candle)
        assert numbers(prediction) == numbers(told)
        assert numbers(learned.step) == numbers(step)
        if candle.open_time == stored["checkpoint"].open_time:
            at_checkpoint = learner.weights_hash()
    saved.load_state_dict(state)
    assert saved.weights_hash() == at_checkpoint


def database_in(folder: Path) -> str:
    """Return the URL of the default database of a service that runs in this folder."""
    return f"sqlite+aiosqlite:///{folder}/data/livewick.db"


async def read(url: str) -> dict[str, Any]:
    async with open_database(url, read_timeout_seconds=60) as database:
        store = SqlRecordStore(database)
        run = await store.latest_run(MARKET)
        assert run is not None
        return {
            "candles": await store.candles(MARKET, None, None, EVERYTHING),
            "predictions": await store.predictions(MARKET, None, None, EVERYTHING),
            "steps": await store.steps(MARKET, None, None, EVERYTHING),
            "checkpoint": await SqlCheckpointStore(database).latest(run),
        }


def numbers(record: Prediction | Step) -> Prediction | Step:
    """Leave out what the clock decides, and the trend that came due later."""
    if isinstance(record, Prediction):
        return replace(record, made_at=0)
    return replace(record, infer_ms=None, train_ms=None, lag_ms=None, queue_depth=None, trend_correct=None, source="")
