"""``python -m tests.support.save_torture URL KILLS SEED [FOLDER_URL]``: kill -9 inside ``save``; then look.

Everything is imported once; then each round forks a process that saves checkpoint after checkpoint, kills it at a
random moment of a save, and forks another one that reads the newest checkpoint back. Prints how often the newest was
the old one and how often the new one as JSON; anything else ends with an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from service.storage import SqlCheckpointStore, SqlRecordStore, open_database
from tests.builders import MARKET, make_checkpoint

CONTENT_BYTES = 1_000_000
SAVE, SAVED = b"s", b"d"


@dataclass(frozen=True)
class Target:
    """Where checkpoints are saved."""

    url: str
    folder_url: str | None


def content(number: int) -> bytes:
    """Return what checkpoint ``number`` consists of: no two agree in any part."""
    return number.to_bytes(8, "big") * (CONTENT_BYTES // 8)


async def save_for_ever(target: Target, number: int, out: int) -> None:
    """Save checkpoints from ``number`` on, saying before and after each which."""
    async with open_database(target.url) as database:
        store = SqlCheckpointStore(database, target.folder_url, inline_bytes=1000)
        run = await SqlRecordStore(database).open_run(MARKET, {}, 0)
        while True:
            os.write(out, SAVE)
            await store.save(run, make_checkpoint(number, data=content(number)))
            os.write(out, SAVED)
            number += 1


async def newest(target: Target, out: int) -> None:
    """Say which checkpoint is the newest good one, -1 where there is none."""
    async with open_database(target.url) as database:
        run = await SqlRecordStore(database).open_run(MARKET, {}, 0)
        found = await SqlCheckpointStore(database).latest(run)
        number = -1 if found is None else found.step
        assert found is None or found == make_checkpoint(number, data=content(number)), "half old, half new"
        os.write(out, str(number).encode())


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work`` in a process of its own; returns its pid and the pipe that it writes to."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.close(reading)
            work(writing)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def one_byte(pipe: int) -> bytes:
    """Wait for one byte of a saver that must be alive."""
    if not (byte := os.read(pipe, 1)):
        raise SystemExit("the saver ended by itself")
    return byte


def killed_in_save(target: Target, number: int, dice: random.Random, longest: float) -> tuple[int, bool]:
    """Save from ``number`` on and be killed in a save; returns how many were saved, and whether one was begun."""
    pid, pipe = forked(lambda out: asyncio.run(save_for_ever(target, number, out)))
    seen = b""
    wanted = dice.randrange(4)
    while seen.count(SAVE) <= wanted:
        seen += one_byte(pipe)
    time.sleep(dice.random() * longest)  # any moment of the save
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while part := os.read(pipe, 1000):
        seen += part
    os.close(pipe)
    return seen.count(SAVED), seen.endswith(SAVE)


def read_newest(target: Target) -> int:
    """Return the number of the newest good checkpoint."""
    pid, pipe = forked(lambda out: asyncio.run(newest(target, out)))
    said = b""
    while part := os.read(pipe, 100):
        said += part
    os.close(pipe)
    if os.waitpid(pid, 0)[1] != 0 or not said:
        raise SystemExit("the checkpoints could not be read")
    return int(said)


def longest_save(target: Target) -> float:
    """Return about how long a save takes, in seconds."""
    pid, pipe = forked(lambda out: asyncio.run(save_for_ever(target, 0, out)))
    times = []
    while len(times) < 20:
        one_byte(pipe)
        times.append(time.monotonic())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pipe)
    return max(later - earlier for earlier, later in zip(times[4::2], times[5::2], strict=False))


def torture(target: Target, kills: int, dice: random.Random) -> dict[str, int]:
    """Kill so often inside a save; returns how often the old and how often the new checkpoint was there."""
    longest = longest_save(target)
    last = read_newest(target)
    found = {"kills": 0, "old": 0, "new": 0}
    while found["kills"] < kills:
        saved, begun = killed_in_save(target, last + 1, dice, longest)
        saved, last = last + saved, read_newest(target)
        if last not in (saved, saved + begun):
            raise SystemExit(f"checkpoint {saved} was acknowledged, and the newest is {last}")
        if begun:
            found["kills"] += 1
            found["new" if last > saved else "old"] += 1
    return found


if __name__ == "__main__":
    where = Target(sys.argv[1], sys.argv[4] if len(sys.argv) > 4 else None)
    sys.stdout.write(json.dumps(torture(where, int(sys.argv[2]), random.Random(int(sys.argv[3])))))
