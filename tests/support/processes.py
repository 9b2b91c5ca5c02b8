"""Real ``livewick`` processes on loopback: the service and the simulated exchange, ended for certain."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

READY_SECONDS = 90
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without it httpx reads all root certificates for every question: a third of a core when asking often."""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass
class Process:
    """One ``livewick`` command under test; its stderr goes to ``log``."""

    popen: subprocess.Popen[str]
    log: Path

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = 20) -> int:
        """Send the signal and return the exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(seconds)


@dataclass
class Exchange(Process):
    """A running ``livewick simulate``."""

    port: int
    ccxt: dict[str, Any]

    def candles(self, start: int, end: int) -> list[list[float]]:
        """Return the exchange's own rows ``[open_time, open, high, low, close, volume]``, end exclusive."""
        rows: list[list[float]] = []
        while start < end:
            query = {"symbol": "ETHUSDT", "interval": "1s", "startTime": start, "endTime": end - 1, "limit": 1000}
            page = (
                httpx.get(f"http://127.0.0.1:{self.port}/api/v3/klines", params=query, verify=NO_TLS)
                .raise_for_status()
                .json()
            )
            if not page:
                break
            rows += [[int(row[0]), *map(float, row[1:6])] for row in page]
            start = rows[-1][0] + 1000
        return rows


@dataclass
class Service(Process):
    """A running ``livewick serve``."""

    url: str

    def get(self, path: str, **query: Any) -> Any:
        return httpx.get(self.url + path, params=query, timeout=30, verify=NO_TLS).raise_for_status().json()

    def wait_until(self, what: str, path: str, wanted: Any, seconds: float = READY_SECONDS) -> Any:
        """Ask ``path`` until ``wanted(answer)`` holds, and return the answer."""
        deadline = time.monotonic() + seconds
        answer: Any = None
        while time.monotonic() < deadline:
            if self.popen.poll() is not None:
                raise AssertionError(f"the service ended with {self.popen.returncode}: {self.log.read_text()[-2000:]}")
            try:
                answer = httpx.get(self.url + path, timeout=10, verify=NO_TLS)
                if answer.status_code in (200, 503) and wanted(answer.json()):
                    return answer.json()
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not {what} after {seconds} s: {answer and answer.text} {self.log.read_text()[-2000:]}")

    def phases(self) -> list[str]:
        """Return the markets' phases, none while it does not answer."""
        try:
            return [market["phase"] for market in self.get("/markets")["markets"]]
        except httpx.HTTPError:
            return []

    def wait_until_live(self) -> Any:
        return self.wait_until("live", "/markets", lambda got: [m["phase"] for m in got["markets"]] == ["live"])

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return every item of a history route, page after page."""
        items, cursor = [], None
        while True:
            page = self.get(path, limit=1000, **({"cursor": cursor} if cursor else {}))
            items += page["items"]
            cursor = page["next"]
            if cursor is None:
                return items


@contextmanager
def exchange(folder: Path, *arguments: str, port: int | None = None) -> Iterator[Exchange]:
    """Run ``livewick simulate`` until the context ends."""
    port = port or free_port()
    log = folder / "exchange.log"
    with _process("simulate", log, folder, {}, "--port", str(port), *arguments) as popen:
        assert popen.stdout is not None
        line = popen.stdout.readline()
        found = re.fullmatch(r"LIVEWICK_CCXT='(.*)'\n", line)
        assert found, f"{line!r} {log.read_text()}"
        yield Exchange(popen, log, port, json.loads(found[1]))


@contextmanager
def service(
    folder: Path, exchange: Exchange | None = None, failpoint: tuple[str, int] | None = None, **settings: Any
) -> Iterator[Service]:
    """Run ``livewick serve`` in ``folder`` until the context ends; on that exchange, or on the simulated one.

    ``failpoint`` (see ``failpoints.py``) kills it at an exact instant.
    """
    port = settings.pop("port", None) or free_port()
    values = {"PORT": port, "BACKFILL": 60, "FEED": "exchange" if exchange else "simulated", **settings}
    if exchange:
        values["CCXT"] = json.dumps(exchange.ccxt)
    log = folder / f"service-{time.time_ns()}.log"
    program = ["tests.support.failpoints", failpoint[0], str(failpoint[1])] if failpoint else ["service"]
    environment = {f"LIVEWICK_{name}": str(value) for name, value in values.items()}
    with _process("serve", log, folder, environment, program=program) as popen:
        yield Service(popen, log, f"http://127.0.0.1:{port}")


@contextmanager
def _process(
    command: str,
    log: Path,
    folder: Path,
    environment: dict[str, str],
    *arguments: str,
    program: Sequence[str] = ("service",),
) -> Iterator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LIVEWICK_")}
    root = Path(__file__).parents[2]
    with log.open("w") as stderr:
        popen = subprocess.Popen(
            [sys.executable, "-m", *program, command, *arguments],
            cwd=folder,
            env={**inherited, "PYTHONPATH": str(root), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            yield popen
        finally:
            _end_for_certain(popen)


def _end_for_certain(popen: subprocess.Popen[str]) -> None:
    if popen.poll() is None:
        children = psutil.Process(popen.pid).children(recursive=True)
        popen.kill()
        popen.wait()
        psutil.wait_procs(children, timeout=10)
    if popen.stdout is not None:
        popen.stdout.close()
