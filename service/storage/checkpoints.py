"""SqlCheckpointStore: a learner's states as rows, each written in one transaction and checked by its hash when read."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.ports import Checkpoint, CheckpointStore, Run
from service.storage import folder
from service.storage.database import Database
from service.storage.folder import CheckpointFolder
from service.storage.records import insert_for
from service.storage.tables import checkpoints

KEPT = 5
KEPT_ASIDE = 2
INLINE_BYTES = 32 * 2**20


class SqlCheckpointStore(CheckpointStore):
    """The last five good checkpoints of a run and its best one (lowest loss), in the database.

    With ``folder_url`` those larger than ``inline_bytes`` are files there, and only their hash and place are rows.
    """

    def __init__(self, database: Database, folder_url: str | None = None, inline_bytes: int = INLINE_BYTES) -> None:
        self.database = database
        self._folder = None if folder_url is None else CheckpointFolder(folder_url)
        self._inline_bytes = inline_bytes

    async def save(self, run: Run, checkpoint: Checkpoint) -> None:
        """Store a checkpoint in one transaction, over one of the same ``open_time``, and forget those not kept."""
        await self.database.ensure_lease(run.market)
        digest = await asyncio.to_thread(sha256, checkpoint.data)
        location = await self._file(run, checkpoint, digest)
        row = {
            "run_id": run.id,
            "open_time": checkpoint.open_time,
            "step": checkpoint.step,
            "created_at": checkpoint.created_at,
            "loss": checkpoint.loss,
            "sha256": digest,
            "size": len(checkpoint.data),
            "data": checkpoint.data if location is None else None,
            "location": location,
            "set_aside": None,
        }
        async with self.database.writing() as connection:
            statement = insert_for(connection)(checkpoints).values(row)
            changed = {name: statement.excluded[name] for name in row}
            replaced = await connection.scalar(
                select(checkpoints.c.location).where(
                    checkpoints.c.run_id == run.id, checkpoints.c.open_time == checkpoint.open_time
                )
            )
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["run_id", "open_time"], set_=changed)
            )
            files = list(await forget_old(connection, run))
        if replaced is not None and replaced != location:
            files.append(replaced)
        for file in files:
            if self._folder is not None:
                await self._folder.delete(file)

    async def latest(self, run: Run) -> Checkpoint | None:
        """Return the newest checkpoint whose content hash is right; damaged ones are set aside."""
        return await self._newest(run, None)

    async def previous(self, run: Run, before: int) -> Checkpoint | None:
        """Return the newest good checkpoint with ``open_time`` before this one."""
        return await self._newest(run, before)

    async def set_aside(self, run: Run, checkpoint: Checkpoint, reason: str) -> None:
        """Never offer this checkpoint again."""
        await self._set_aside(run, checkpoint.open_time, reason)

    async def _file(self, run: Run, checkpoint: Checkpoint, digest: str) -> str | None:
        """Return where the content was put outside the database, or None."""
        if self._folder is None or len(checkpoint.data) <= self._inline_bytes:
            return None
        return await self._folder.write(f"{run.id}-{checkpoint.open_time}-{digest[:16]}.ckpt", checkpoint.data)

    async def _set_aside(self, run: Run, open_time: int, reason: str) -> None:
        async with self.database.writing() as connection:
            mine = (checkpoints.c.run_id == run.id, checkpoints.c.open_time == open_time)
            await connection.execute(update(checkpoints).where(*mine).values(set_aside=reason))

    async def _newest(self, run: Run, before: int | None) -> Checkpoint | None:
        while (row := await self._row(run, before)) is not None:
            data = row.data if row.location is None else await folder.read(row.location)
            if data is not None and await asyncio.to_thread(sha256, data) == row.sha256:
                return Checkpoint(row.open_time, row.step, row.created_at, row.loss, bytes(data))
            reason = "its file is gone" if data is None else "its content does not match its hash"
            await self._set_aside(run, row.open_time, reason)
        return None

    async def _row(self, run: Run, before: int | None) -> Any:
        query = select(checkpoints).where(checkpoints.c.run_id == run.id, checkpoints.c.set_aside.is_(None))
        if before is not None:
            query = query.where(checkpoints.c.open_time < before)
        async with self.database.reading() as connection:
            return (await connection.execute(query.order_by(checkpoints.c.open_time.desc()).limit(1))).first()


async def forget_old(connection: AsyncConnection, run: Run) -> Sequence[str]:
    """Delete what is neither among the newest five good ones, nor the best, nor the newest two set aside.

    Returns the places of files that no row points to any more.
    """
    mine = select(checkpoints.c.id).where(checkpoints.c.run_id == run.id)
    newest_first = mine.order_by(checkpoints.c.open_time.desc())
    good = checkpoints.c.set_aside.is_(None)
    best = mine.where(good, checkpoints.c.loss.is_not(None)).order_by(checkpoints.c.loss).limit(1)
    keep = [newest_first.where(good).limit(KEPT), best, newest_first.where(~good).limit(KEPT_ASIDE)]
    # Three subqueries instead of one union: neither database takes LIMIT inside a plain union.
    kept = or_(*(checkpoints.c.id.in_(query) for query in keep))
    forgotten = delete(checkpoints).where(checkpoints.c.run_id == run.id, ~kept).returning(checkpoints.c.location)
    places = (await connection.execute(forgotten)).scalars()
    return [place for place in places if place is not None]


def sha256(data: bytes) -> str:
    """Return the content hash in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
