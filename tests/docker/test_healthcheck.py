"""The container's healthcheck tells alive from dead, in time."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "docker" / "healthcheck.py"


@pytest.fixture
def is_alive() -> Callable[..., bool]:
    spec = importlib.util.spec_from_file_location("healthcheck", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check: Callable[..., bool] = module.is_alive
    return check


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Answer(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status if self.path == "/health/live" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_service_that_answers_200_is_alive(is_alive: Callable[..., bool], server: HTTPServer) -> None:
    assert is_alive(server.server_port)


def test_a_service_that_answers_503_is_not(is_alive: Callable[..., bool], server: HTTPServer) -> None:
    server.RequestHandlerClass.status = 503  # type: ignore[attr-defined]
    assert not is_alive(server.server_port)


def test_a_port_where_nothing_listens_is_not_alive(is_alive: Callable[..., bool]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert not is_alive(taken.getsockname()[1])


def test_a_service_that_hangs_is_not_alive(is_alive: Callable[..., bool]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not is_alive(silent.getsockname()[1], seconds=0.2)


def test_a_proxy_set_for_the_exchange_is_not_asked(
    is_alive: Callable[..., bool], server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert is_alive(server.server_port)
