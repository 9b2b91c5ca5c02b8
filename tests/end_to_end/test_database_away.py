"""The database crashes, loses sessions or is away under a running service: it goes on, and everything is stored."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.never_stopped import database_in, nothing_lost_and_equal_to_the_last_bit
from tests.support.postgres import PostgresCluster
from tests.support.processes import Service, exchange, service

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(1800)]
TROUBLES = int(os.environ.get("DATABASE_TROUBLES", "5"))
"""DATABASE_TROUBLES=50 OUTAGE_SECONDS=60 is what the issue asks for."""

OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "10"))
CAUGHT_UP_SECONDS = 30
STOPPED_SECONDS = 8
Record = Callable[[str, object], None]


@contextmanager
def unharmed(folder: Path, cluster: PostgresCluster) -> Iterator[tuple[Service, str]]:
    """Lend a live service on an empty database; afterwards nothing may be missing, and it may never have restarted."""
    with cluster.database(migrated=False) as url, exchange(folder, "--seed", "5") as market:
        with service(folder, market, BACKFILL=40, CHECKPOINT_EVERY=7, DATABASE_URL=url) as running:
            running.wait_until_live()
            yield running, url.rsplit("/", 1)[1]
            assert running.get("/markets")["markets"][0]["learner_restarts"] == 0
            assert running.end() == 0, running.log.read_text()
            assert "Traceback" not in running.log.read_text()
        nothing_lost_and_equal_to_the_last_bit(market, url)


def caught_up(running: Service) -> float:
    """Return how long it takes until everything that happened so far is stored and the service says it is ready."""
    started = time.monotonic()
    step = running.get("/markets")["markets"][0]["step"]
    running.wait_until("ready", "/health/ready", lambda got: got.get("status") == "ready", seconds=90)
    stored = "the step is stored"
    running.wait_until(stored, "/steps?limit=10000", lambda got: got["items"][-1]["step"] >= step, seconds=90)
    return time.monotonic() - started


def test_crashes_of_the_database(tmp_path: Path, postgres_cluster: PostgresCluster, record_property: Record) -> None:
    dice, waits = random.Random(1), []
    with unharmed(tmp_path, postgres_cluster) as (running, _):
        for _ in range(TROUBLES):
            time.sleep(dice.uniform(0.0, 2.0))  # any instant between two writes, or in one
            postgres_cluster.restart("immediate")
            if dice.random() < 0.3:
                waits.append(caught_up(running))
        waits.append(caught_up(running))
    record_property("caught_up_seconds", [round(wait, 2) for wait in waits])
    assert max(waits) <= CAUGHT_UP_SECONDS


def test_killed_sessions(tmp_path: Path, postgres_cluster: PostgresCluster, record_property: Record) -> None:
    dice, killed = random.Random(2), 0
    with unharmed(tmp_path, postgres_cluster) as (running, database):
        for _ in range(TROUBLES):
            time.sleep(dice.uniform(0.0, 1.5))  # any instant between two writes, or in one
            killed += postgres_cluster.terminate_sessions(database)
        wait = caught_up(running)
    record_property("killed_sessions", killed)
    record_property("caught_up_seconds", round(wait, 2))
    assert killed >= TROUBLES
    assert wait <= CAUGHT_UP_SECONDS


def test_an_outage(tmp_path: Path, postgres_cluster: PostgresCluster, record_property: Record) -> None:
    with unharmed(tmp_path, postgres_cluster) as (running, _):
        postgres_cluster.stop("immediate")
        over = time.monotonic() + OUTAGE_SECONDS
        predicted = set()
        running.wait_until("not ready", "/health/ready", lambda got: got.get("status") != "ready")
        while time.monotonic() < over:
            predicted.add(running.get("/predict")["open_time"])
            assert httpx.get(running.url + "/health/ready").status_code == 503
            time.sleep(0.2)  # between two looks
        backlog = running.get("/markets")["markets"][0]["backlog"]
        postgres_cluster.start()
        wait = caught_up(running)
    record_property("caught_up_seconds", round(wait, 2))
    assert len(predicted) >= OUTAGE_SECONDS - 3, "predictions go on"
    assert backlog >= OUTAGE_SECONDS - 5
    assert wait <= CAUGHT_UP_SECONDS


def test_an_sqlite_file_that_is_moved_away_and_back(tmp_path: Path) -> None:
    with exchange(tmp_path, "--seed", "7") as market:
        with service(tmp_path, market, BACKFILL=40, CHECKPOINT_EVERY=7) as running:
            running.wait_until_live()
            path = tmp_path / "data" / "livewick.db"
            path.rename(tmp_path / "elsewhere.db")
            running.wait_until("noticed", "/markets", lambda got: not got["markets"][0]["database_ok"])
            not_ready = running.wait_until("not ready", "/health/ready", lambda got: got.get("status") != "ready")
            assert "database" in not_ready["detail"]
            assert "was deleted or moved away: put it back" in running.log.read_text()
            assert running.get("/predict")["open_time"] > 0
            assert not path.exists()
            (tmp_path / "elsewhere.db").rename(path)
            assert caught_up(running) <= CAUGHT_UP_SECONDS
            assert running.end() == 0, running.log.read_text()
        nothing_lost_and_equal_to_the_last_bit(market, database_in(tmp_path))


def test_failures_61_a_database_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, postgres_cluster: PostgresCluster
) -> None:
    with postgres_cluster.database(migrated=False) as url, exchange(tmp_path, "--seed", "6") as market:
        settings: dict[str, Any] = {"BACKFILL": 40, "CHECKPOINT_EVERY": 7, "DATABASE_URL": url}
        with service(tmp_path, market, **settings) as running:
            running.wait_until_live()
            postgres_cluster.pause()
            try:
                running.wait_until("noticed", "/markets", lambda got: not got["markets"][0]["database_ok"])
                started = time.monotonic()
                assert running.end() == 0, running.log.read_text()
                took = time.monotonic() - started
            finally:
                postgres_cluster.resume()
            assert took <= STOPPED_SECONDS
        with service(tmp_path, market, **settings) as again:
            again.wait_until_live()
            assert again.end() == 0
        nothing_lost_and_equal_to_the_last_bit(market, url)
