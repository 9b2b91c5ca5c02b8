"""A real pgbouncer, pooling transactions, before the tests' PostgreSQL, where the machine has one (apt: pgbouncer)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres import PostgresCluster, free_port

BINARY = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
START_SECONDS = 60.0
# No ignore_startup_parameters: whoever sends settings at connect is refused, as on a default installation.
CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = 4
server_reset_query_always = 0
"""


@contextmanager
def pgbouncer(cluster: PostgresCluster) -> Iterator[int]:
    """Run pgbouncer for the length of the context and lend its port; users and passwords are the cluster's."""
    folder = Path(tempfile.mkdtemp(prefix="lwpgb-", dir="/tmp"))
    port = free_port()
    users, config = folder / "users", folder / "pgbouncer.ini"
    users.write_text(f'"livewick" "{cluster.password}"\n')
    config.write_text(CONFIG.format(server_port=cluster.port, port=port, users=users))
    cluster.give(folder, users, config)
    process = subprocess.Popen(
        [str(BINARY), "-q", config], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        **cluster.identity(),
    )  # fmt: skip
    try:
        wait_until_open(port, process)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the port takes connections."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("pgbouncer did not start")
