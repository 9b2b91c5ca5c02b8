"""The PostgreSQL of our tests: it starts over what a crash left behind, and ends with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.postgres import PostgresCluster

pytestmark = pytest.mark.postgres
START_AND_WAIT = """
import sys
from tests.support.postgres import PostgresCluster
cluster = PostgresCluster()
print(cluster.folder, flush=True)
sys.stdin.read()
"""


def test_failures_85_a_pid_file_that_names_somebody_else_does_not_stop_the_start(
    postgres_cluster: PostgresCluster,
) -> None:
    postgres_cluster.stop("immediate")
    stale = postgres_cluster.data / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n{postgres_cluster.data}\n1\n{postgres_cluster.port}\n{postgres_cluster.folder}\n")
    try:
        postgres_cluster.start()
    except RuntimeError:
        # A clear refusal within seconds is as good; then the file has to go.
        stale.unlink()
        postgres_cluster.start()
    assert postgres_cluster.sql("SELECT 1") == "1"


def test_failures_87_a_test_run_that_is_killed_leaves_no_server_and_no_folder() -> None:
    command = [sys.executable, "-c", START_AND_WAIT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        folder = Path(starter.stdout.readline().strip())
        server = psutil.Process(int((folder / "data" / "postmaster.pid").read_text().split()[0]))
        assert server.name() == "postgres"
        assert server.username() != "root"
        guard = server.parent()
        assert guard is not None
        starter.kill()
    guard.wait(60)
    assert not server.is_running()
    assert not folder.exists()
