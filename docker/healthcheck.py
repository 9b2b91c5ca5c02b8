"""Say by the exit code whether the service in this container is alive; asked by Docker's HEALTHCHECK."""

from __future__ import annotations

import http.client
import os
import sys


def is_alive(port: int, seconds: float = 4.0) -> bool:
    """Return whether ``GET /health/live`` on this port of the loopback address answers 200 in time."""
    # Not urllib: it would send this request through a proxy set for the exchange.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not is_alive(int(os.environ.get("LIVEWICK_PORT", "8000"))))
