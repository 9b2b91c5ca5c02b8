"""kill -9 at any instant: nothing stored is lost or doubled, and the learner goes on to the last bit."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.failpoints import POINTS
from tests.support.never_stopped import database_in, nothing_lost_and_equal_to_the_last_bit
from tests.support.processes import Exchange, exchange, service

SETTINGS: dict[str, Any] = {"BACKFILL": 40, "CHECKPOINT_EVERY": 7}
READY_AGAIN_SECONDS = 10
KILLED_BY_THEN_SECONDS = 90.0


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


def test_killed_at_every_failpoint_it_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Failpoints of the issue: around commits, in checkpoints, in migration, in the first start."""
    with exchange(tmp_path, "--seed", "3") as market:
        kill(market, tmp_path, ("inside-migration", 3))
        for number, point in enumerate(POINTS[:-1]):
            kill(market, tmp_path, (point, 1 + number % 2))
        ready_again(market, tmp_path)
        nothing_lost_and_equal_to_the_last_bit(market, database_in(tmp_path))


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
                waits += kill(market, folder, (dice.choice(POINTS[:-1]), dice.randint(1, 3)))
            else:
                waits += kill(market, folder, live_seconds=dice.uniform(0.0, 4.0))
            if number % 10 == 9:
                waits.append(ready_again(market, folder))
                nothing_lost_and_equal_to_the_last_bit(market, database_in(folder))
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
