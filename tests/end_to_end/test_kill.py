"""kill -9 at any instant: nothing stored is lost or doubled, and the learner goes on to the last bit."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import load_state
from models.config import LearnerConfig
from models.learner import Learner
from models.records import Prediction, Step
from service.storage import SqlCheckpointStore, SqlRecordStore, open_database
from tests.support.failpoints import POINTS
from tests.support.processes import Exchange, exchange, service

SETTINGS: dict[str, Any] = {"BACKFILL": 40, "CHECKPOINT_EVERY": 7}
READY_AGAIN_SECONDS = 10
KILLED_BY_THEN_SECONDS = 90.0
MARKET = "binance:ETH/USDT"
EVERYTHING = 2**31


def ready_again(market: Exchange, folder: Path) -> float:
    """Start the service, wait until it is live and two more candles are learned; return how long until ready."""
    started = time.monotonic()
    with service(folder, market, **SETTINGS) as running:
        running.wait_until_live()
        seconds = time.monotonic() - started
        step = running.get("/markets")["markets"][0]["step"]
        running.wait_until("learning", "/markets", lambda got: got["markets"][0]["step"] >= step + 2)
        running.end()
    return seconds


def nothing_lost_and_equal_to_the_last_bit(market: Exchange, folder: Path) -> None:
    """Learn what is stored once more, never stopped, and compare every number."""
    stored = asyncio.run(read(folder))
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


async def read(folder: Path) -> dict[str, Any]:
    async with open_database(f"sqlite+aiosqlite:///{folder}/data/livewick.db") as database:
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


def test_killed_at_every_failpoint_it_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Failpoints of the issue: around commits, in checkpoints, in migration, in the first start."""
    with exchange(tmp_path, "--seed", "3") as market:
        kill(market, tmp_path, ("inside-migration", 3))
        for number, point in enumerate(POINTS[:-1]):
            kill(market, tmp_path, (point, 1 + number % 2))
        ready_again(market, tmp_path)
        nothing_lost_and_equal_to_the_last_bit(market, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("KILLS", "40")) // 40))
def test_killed_40_times_at_random_instants(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """KILLS=200 makes it five times forty, each from a first start of its own."""
    waits = kill_many(tmp_path, 40, seed)
    record_property("ready_again_seconds", [round(wait, 2) for wait in waits])
    assert max(waits) <= READY_AGAIN_SECONDS


def kill_many(folder: Path, kills: int, seed: int) -> list[float]:
    """Kill so often, and every tenth time look at everything; returns how long each start took that became ready.

    The first start never gets past its first seconds: it is killed inside the migration and at three random instants.
    After that, failpoints, random instants of the start and random instants of the life take turns.
    """
    dice = random.Random(seed)
    waits: list[float] = []
    with exchange(folder, "--seed", str(seed)) as market:
        for number in range(kills):
            if number == 0:
                waits += kill(market, folder, ("inside-migration", dice.randint(1, 6)))
            elif number < 4 or number % 3 == 0:
                waits += kill(market, folder, after_seconds=dice.uniform(0.3, 6.0))
            elif number % 3 == 1:
                waits += kill(market, folder, (dice.choice(POINTS[:-1]), dice.randint(1, 9)))
            else:
                waits += kill(market, folder, live_seconds=dice.uniform(0.0, 4.0))
            if number % 10 == 9:
                waits.append(ready_again(market, folder))
                nothing_lost_and_equal_to_the_last_bit(market, folder)
    return waits


def kill(
    market: Exchange,
    folder: Path,
    failpoint: tuple[str, int] | None = None,
    after_seconds: float = KILLED_BY_THEN_SECONDS,
    live_seconds: float = KILLED_BY_THEN_SECONDS,
) -> list[float]:
    """Start the service and kill it: at the failpoint, or so long after its start, or so long after it became live.

    Returns how long it took to become live, if it did.
    """
    started = time.monotonic()
    waits: list[float] = []
    with service(folder, market, failpoint, **SETTINGS) as running:
        deadline = started + after_seconds
        while time.monotonic() < deadline and running.popen.poll() is None:
            if not waits and running.phases() == ["live"]:
                waits.append(time.monotonic() - started)
                deadline = min(deadline, time.monotonic() + live_seconds)
            time.sleep(0.05)  # until a random instant
        assert running.popen.poll() == (-signal.SIGKILL if failpoint else None), running.log.read_text()
    return waits
