"""The image's command as process 1, where a signal without a handler does nothing."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support.postgres import PostgresCluster, postgres_cluster

__all__ = ["postgres_cluster"]

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]


def _may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=30).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_failures_91_sigterm_ends_process_1_within_8_seconds(tmp_path: Path) -> None:
    if not _may_unshare():
        pytest.skip("a process-id namespace cannot be made here (needs root)")
    with _serving_as_process_1(tmp_path) as (process, port):
        _wait_until_alive(process, port)
        _stops_in_time(process)
    assert _rows_were_kept(tmp_path)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(180)
def test_runs_as_compose_runs_it(tmp_path: Path, postgres_cluster: PostgresCluster) -> None:
    """The password beside the database's address, not in it, and a folder that cannot be written to."""
    if not _may_unshare():
        pytest.skip("a process-id namespace cannot be made here (needs root)")
    password = "p@ss:w/rd %41 #?"
    postgres_cluster.sql(f"CREATE ROLE compose LOGIN PASSWORD '{password}'")
    with postgres_cluster.database(migrated=False) as url:
        name = url.rpartition("/")[2]
        postgres_cluster.sql(f"ALTER DATABASE {name} OWNER TO compose")
        settings = {"LIVEWICK_DATABASE_URL": f"postgresql+asyncpg://compose@127.0.0.1:{postgres_cluster.port}/{name}"}
        settings |= {"PGPASSWORD": password, "LIVEWICK_LOG_FORMAT": "json", "LIVEWICK_MODEL": ""}
        _migrate(tmp_path, settings)
        with _serving_as_process_1(tmp_path, settings, read_only=True) as (process, port):
            _wait_until_alive(process, port)
            _stops_in_time(process)
        assert int(postgres_cluster.sql("SELECT count(*) FROM checkpoints", name)) > 0
        assert password not in (tmp_path.parent / f"{tmp_path.name}.log").read_text()


def _stops_in_time(process: subprocess.Popen[bytes]) -> None:
    asked = time.monotonic()
    os.kill(_only_child(process.pid), signal.SIGTERM)
    status = process.wait(timeout=20)
    assert time.monotonic() - asked <= 8
    assert status in (0, 143)


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("LIVEWICK_")}
    return mine | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | dict(settings)


def _migrate(folder: Path, settings: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "service", "migrate"]
    done = subprocess.run(command, cwd=folder, env=_environment(settings), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


READ_ONLY = 'mount --bind "$PWD" "$PWD" && mount -o remount,bind,ro "$PWD" && cd "$PWD" && exec "$@"'


@contextmanager
def _serving_as_process_1(
    folder: Path, settings: Mapping[str, str] = MappingProxyType({}), read_only: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"LIVEWICK_FEED": "simulated", "LIVEWICK_PORT": str(port), "LIVEWICK_BACKFILL": "60"}
    wrapper = ["sh", "-ec", READ_ONLY, "sh"] if read_only else []
    command = [*UNSHARE, *wrapper, sys.executable, "-m", "service", "serve"]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=_environment(own | dict(settings)), stdout=log, stderr=log)
    try:
        yield process, port
    finally:
        process.kill()  # --kill-child: process 1 of the namespace goes too, and with it everything in there
        process.wait(10)


def _wait_until_alive(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 90
    while not _answers(port):
        assert process.poll() is None, "the service ended by itself"
        assert time.monotonic() < deadline, "the service did not come up"
        time.sleep(0.1)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/predict")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _rows_were_kept(folder: Path) -> bool:
    connection = sqlite3.connect(folder / "data" / "livewick.db")
    try:
        (count,) = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
    finally:
        connection.close()
    return bool(count > 0)
