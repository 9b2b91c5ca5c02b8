"""Two services on one PostgreSQL: one trains, the other serves what is stored and takes over when the first is gone."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.never_stopped import nothing_lost_and_equal_to_the_last_bit
from tests.support.postgres import PostgresCluster
from tests.support.processes import exchange, service

TAKEN_OVER_SECONDS = 10


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_failures_59_the_second_serves_reads_and_takes_over(tmp_path: Path, postgres_cluster: PostgresCluster) -> None:
    with postgres_cluster.database(migrated=False) as url, exchange(tmp_path, "--seed", "8") as market:
        settings: dict[str, Any] = {"BACKFILL": 40, "CHECKPOINT_EVERY": 7, "DATABASE_URL": url}
        with service(tmp_path, market, **settings) as first:
            first.wait_until_live()
            with service(tmp_path, market, **settings) as second:
                second.wait_until("waiting", "/markets", lambda got: "trains" in got["markets"][0]["reason"])
                assert second.get("/steps", limit=10)["items"]
                assert httpx.get(second.url + "/predict").status_code == 503
                step = first.get("/markets")["markets"][0]["step"]
                first.wait_until("learning", "/markets", lambda got: got["markets"][0]["step"] >= step + 3)
                assert second.get("/markets")["markets"][0]["phase"] == "starting", "one trains at a time"
                first.end(signal.SIGKILL)
                killed = time.monotonic()
                second.wait_until_live()
                assert time.monotonic() - killed <= TAKEN_OVER_SECONDS
                assert second.end() == 0, second.log.read_text()
        nothing_lost_and_equal_to_the_last_bit(market, url)
