"""Canaries: no secret is in a log line, an answer, a metric, a process title or the database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import Service, exchange, service

KEY, TICKET_KEY = "canary-key-5f1b", "canary-key-77aa"
CCXT = {
    "apiKey": "canary-ccxt-key",
    "secret": "canary-ccxt-secret",
    "password": "canary-ccxt-password",
    "headers": {"Authorization": "Bearer canary-ccxt-header"},
}
DATABASE = "postgresql+asyncpg://somebody:canary-db-password@127.0.0.1:1/livewick"
WORD = "canary"


def titles(running: Service) -> str:
    """Return how the service and its children call themselves to everybody on the machine."""
    pids = [running.popen.pid, *(child.pid for child in running.children())]
    return "".join(
        (Path("/proc") / str(pid) / file).read_bytes().decode()
        for pid in pids
        for file in ("cmdline", "comm", "status")
    )


def answers(running: Service, headers: dict[str, str]) -> list[httpx.Response]:
    """Call everything that is documented, and things that are wrong."""
    with httpx.Client(base_url=running.url, headers=headers, timeout=30) as client:
        document = client.get("/openapi.json").json()
        calls = [(method, path) for path, methods in document["paths"].items() for method in methods]
        wrong = [
            ("GET", "/docs"),
            ("GET", "/nowhere"),
            ("GET", f"/steps?limit={KEY}"),
            ("POST", f"/model/pause?k={KEY}"),
        ]
        made = [client.request(method, path) for method, path in [*calls, *wrong, ("GET", "/openapi.json")]]
        return [*made, client.post("/predict", content=f'{{"{KEY}": {KEY}')]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("log_format", ["json", pytest.param("console", marks=pytest.mark.slow)])
def test_no_secret_leaves_a_running_service(tmp_path: Path, log_format: str) -> None:
    settings: dict[str, Any] = {
        "API_KEYS": f"{KEY},{TICKET_KEY}",
        "LOG_LEVEL": "debug",
        "LOG_FORMAT": log_format,
        "BACKFILL": 20,
    }
    with exchange(tmp_path, "--seed", "7") as market:
        market.ccxt |= CCXT
        market.ccxt["options"] |= {"fetchCurrencies": False, "fetchMargins": False}  # Of the account, elsewhere.
        with service(tmp_path, market, **settings) as running:
            headers = {"X-API-Key": KEY}
            with httpx.Client(base_url=running.url, headers=headers) as client:
                wait_until(lambda: is_live(client), 90)
            told = [*answers(running, headers), *answers(running, {"Authorization": f"Bearer {KEY}x"})]
            assert {200, 401, 404, 422} <= {answer.status_code for answer in told}
            assert "livewick_steps_total" in "".join(answer.text for answer in told)
            assert WORD not in titles(running)
            assert WORD not in "".join(answer.text + str(answer.headers) for answer in told)
            assert running.end() == 0
        log = running.log.read_text()
        assert "request" in log
        assert WORD not in log
        assert not [
            file for file in (tmp_path / "data").rglob("*") if file.is_file() and WORD.encode() in file.read_bytes()
        ]


def is_live(client: httpx.Client) -> bool:
    try:
        return [market["phase"] for market in client.get("/markets").json()["markets"]] == ["live"]
    except httpx.TransportError:
        return False


def wait_until(is_true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    with service(tmp_path, DATABASE_URL=DATABASE, LOG_LEVEL="debug") as running:
        wait_until(lambda: "cannot be reached" in running.log.read_text(), 60)
        assert WORD not in titles(running)
        running.end(signal.SIGTERM)
    assert WORD not in running.log.read_text()


def test_an_exchange_that_cannot_be_reached_is_named_without_the_proxys_password_or_a_signed_query(
    tmp_path: Path,
) -> None:
    ccxt = json.dumps(CCXT | {"httpsProxy": "http://somebody:canary-proxy@127.0.0.1:1", "timeout": 2000})
    with service(tmp_path, FEED="exchange", CCXT=ccxt, LOG_LEVEL="debug") as running:
        wait_until(lambda: "cannot be reached" in running.log.read_text(), 60)
        markets = httpx.get(running.url + "/markets").text
        running.end(signal.SIGTERM)
    told = running.log.read_text() + markets
    assert "cannot be reached" in told
    assert WORD not in told
    assert "signature=" not in told


def run(command: str, folder: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {f"LIVEWICK_{name}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "service", command],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"CCXT": '{"secret": "canary", '},
        {"CCXT": '["canary"]'},
        {"DATABASE_URL": "mysql://somebody:canary@host/livewick"},
        {"DATABASE_URL": "canary"},
        {"DATABASE_URL": "postgresql+asyncpg://u:canary@host:notaport/livewick"},
        {"API_KEYS": "canary", "PORT": "x"},
        {"CHECKPOINT_URL": "s3://u:canary@host/x", "PORT": "x"},
        {"DATABASE_URL": "postgresql+asyncpg://u:canary@127.0.0.1:1/x?password=canary", "TIMEFRAME": "x"},
    ],
)
def test_refused_settings_are_named_without_their_secret(tmp_path: Path, settings: dict[str, str]) -> None:
    done = run("serve", tmp_path, settings)
    assert WORD not in done.stdout + done.stderr
    assert done.returncode == 2, done.stderr
    assert "LIVEWICK_" in done.stderr


def test_the_settings_in_force_are_told_without_their_secrets(tmp_path: Path) -> None:
    settings = {
        "CCXT": json.dumps(CCXT | {"httpsProxy": "http://somebody:canary-proxy@127.0.0.1:1"}),
        "DATABASE_URL": f"{DATABASE}?password=canary",
        "CHECKPOINT_URL": "s3://somebody:canary@bucket",
        "API_KEYS": KEY,
    }
    done = run("settings", tmp_path, settings)
    assert done.returncode == 0
    assert "somebody" in done.stdout
    assert WORD not in done.stdout + done.stderr
