"""The learner's process dies or hangs under a running service: nobody else notices, and it is back to the last bit."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.never_stopped import database_in, nothing_lost_and_equal_to_the_last_bit
from tests.support.processes import NO_TLS, Service, exchange, service

BACK_SECONDS = 10
DEATHS_A_LIFE = 4
"""One more within a minute would end the service, as it should."""

UNHARMED = ("/health/live", "/markets", "/candles?limit=3", "/steps?limit=3", "/series?bucket=60", "/metrics", "/")
KILLS = int(os.environ.get("WORKER_KILLS", "8"))
STOPS = int(os.environ.get("WORKER_STOPS", "2"))


def learner_of(running: Service) -> psutil.Process:
    """Return the learner's process; fails when there are two."""
    (child,) = [child for child in running.children() if "learner_process" in " ".join(child.cmdline())]
    return child


def away_and_back(running: Service, number: signal.Signals) -> tuple[float, float]:
    """Send the learner a signal; returns the seconds until /predict said 503, and until it answered again."""
    before = running.get("/markets")["markets"][0]["learner_restarts"]
    learner_of(running).send_signal(number)
    started = time.monotonic()
    away = None
    with httpx.Client(base_url=running.url, timeout=5, verify=NO_TLS) as client:
        while time.monotonic() < started + 3 * BACK_SECONDS:
            answer = client.get("/predict")
            if answer.status_code == 503:
                away = away or time.monotonic() - started
                assert int(answer.headers["Retry-After"]) > 0
            elif away is not None and client.get("/markets").json()["markets"][0]["learner_restarts"] > before:
                return away, time.monotonic() - started
            for path in UNHARMED:
                assert client.get(path).status_code == 200
            time.sleep(0.02)  # between two looks
    raise AssertionError(f"not away and back: {away} {running.log.read_text()[-2000:]}")


def live_candles(running: Service, count: int) -> None:
    """Return when so many more candles were learned."""
    step = running.get("/markets")["markets"][0]["step"]
    running.wait_until("learning", "/markets", lambda got: (got["markets"][0]["step"] or 0) >= step + count)


def torment(folder: Path, number: signal.Signals, times: int, backfill: int = 400) -> list[float]:
    """Send the signal so often, a few times to each service; returns the seconds until it was back each time."""
    dice = random.Random(times)
    waits: list[float] = []
    with exchange(folder, "--seed", str(times)) as market:
        while len(waits) < times:
            with service(folder, market, BACKFILL=backfill) as running:
                running.wait_until_live()
                for _ in range(min(DEATHS_A_LIFE, times - len(waits))):
                    time.sleep(dice.random())  # any instant of a candle's second
                    waits.append(away_and_back(running, number)[1])
                live_candles(running, 2)
                assert running.end() == 0, running.log.read_text()
                assert "Traceback" not in running.log.read_text()
        nothing_lost_and_equal_to_the_last_bit(market, database_in(folder))
    return waits


def test_a_killed_learner_is_back_and_nobody_else_notices(tmp_path: Path) -> None:
    torment(tmp_path, signal.SIGKILL, 1, backfill=40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_many_times(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """WORKER_KILLS=50 is what the issue asks for."""
    waits = torment(tmp_path, signal.SIGKILL, KILLS)
    record_property("back_seconds", [round(wait, 2) for wait in waits])
    assert max(waits) <= BACK_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stopped_many_times(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """It never goes on by itself: the service has to notice. WORKER_STOPS=10 is what the issue asks for."""
    waits = torment(tmp_path, signal.SIGSTOP, STOPS)
    record_property("back_seconds", [round(wait, 2) for wait in waits])
    assert max(waits) <= BACK_SECONDS


@pytest.mark.slow
def test_five_deaths_in_a_minute_end_the_service_with_a_clear_line(tmp_path: Path) -> None:
    with exchange(tmp_path) as market, service(tmp_path, market, BACKFILL=40) as running:
        running.wait_until_live()
        for _ in range(DEATHS_A_LIFE):
            away_and_back(running, signal.SIGKILL)
        children = running.children()
        learner_of(running).kill()
        assert running.popen.wait(30) == 1
        last = running.log.read_text().splitlines()[-1]
        assert last.startswith("livewick: the learner died 5 times within 60 s")
        assert not [child for child in children if child.is_running()]
        ready = time.monotonic()
    with exchange(tmp_path, port=market.port) as market, service(tmp_path, market, BACKFILL=40) as again:
        again.wait_until_live()
        assert time.monotonic() - ready < 60
