"""The process that writes is killed at any instant: what was acknowledged is there, once, and nothing is half there."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import pytest
from sqlalchemy import text

from service.storage import SqlCheckpointStore, SqlRecordStore, check_integrity, open_database
from tests.builders import MARKET, at, make_batch, make_checkpoint

CHECKPOINT_BYTES = 300_000
# Writes as the service does and says after each commit how far it is.
WRITER = f"""
import asyncio, os, sys
from service.storage import SqlCheckpointStore, SqlRecordStore, open_database
from tests.builders import MARKET, make_batch, make_checkpoint

def say(line):
    os.write(1, (line + "\\n").encode())  # one write: whole or not at all, however the kill falls

async def write():
    async with open_database(sys.argv[1]) as database:
        store, checkpoints = SqlRecordStore(database), SqlCheckpointStore(database)
        run = await store.open_run(MARKET, {{}}, 0)
        newest = await store.last_candles(MARKET, 1)
        first = 0 if not newest else (newest[0].open_time - 1_700_000_000_000) // 1000 + 1
        while True:
            await store.write(run, make_batch(first, 3))
            say(f"records {{first + 3}}")
            await checkpoints.save(run, make_checkpoint(first, data=first.to_bytes(8, "big") * {CHECKPOINT_BYTES // 8}))
            say(f"checkpoint {{first}}")
            first += 3

asyncio.run(write())
"""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
async def test_nothing_acknowledged_is_lost_and_nothing_is_half_written(url: str, kills: int) -> None:
    rng = random.Random(kills)
    records = checkpoint = 0
    for _ in range(kills):
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, url, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 40)):
            said = await writer.stdout.readline()
            assert said, "the writer ended by itself"
            kind, number = said.split()
            records, checkpoint = (int(number), checkpoint) if kind == b"records" else (records, int(number))
        await asyncio.wait([asyncio.create_task(writer.wait())], timeout=rng.random() * 0.02)
        writer.kill()
        for line in (await writer.stdout.read()).splitlines():
            kind, number = line.split()
            records, checkpoint = (int(number), checkpoint) if kind == b"records" else (records, int(number))
        await writer.wait()
        await assert_whole(url, records, checkpoint)


async def assert_whole(url: str, records: int, checkpoint: int) -> None:
    """Check that at least so many records and this checkpoint are stored, in whole batches, without doubles."""
    async with open_database(url) as database:
        store = SqlRecordStore(database)
        run = await store.open_run(MARKET, {}, 0)
        async with database.reading() as connection:
            counted = "SELECT count(*), count(DISTINCT open_time), min(open_time), max(open_time) FROM "
            stored = [
                (await connection.execute(text(counted + name))).one() for name in ("candles", "steps", "predictions")
            ]
        count = stored[0][0]
        assert count % 3 == 0
        assert count >= records
        assert [tuple(row) for row in stored[:2]] == [(count, count, at(0), at(count - 1))] * 2
        assert tuple(stored[2]) == (count, count, at(1), at(count))
        assert await store.steps(MARKET, at(count - 3), None, 10) == make_batch(count - 3, 3).steps
        newest = await SqlCheckpointStore(database).latest(run)
        assert newest is not None
        assert newest.step >= checkpoint
        assert newest == make_checkpoint(newest.step, data=newest.step.to_bytes(8, "big") * (CHECKPOINT_BYTES // 8))
    assert await check_integrity(url)
