"""CheckpointFolder: large checkpoints as files in a folder or an object store, named by a URL."""

from __future__ import annotations

import asyncio
import os

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from service.storage.errors import expected_trouble

TIMEOUT_SECONDS = 60.0


class CheckpointFolder:
    """Files that a row in the database points to; only that row makes one count, so a half-written file is none.

    Any file system that fsspec knows: a path, ``file://``, ``s3://bucket/folder`` (with its package installed).
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def write(self, name: str, data: bytes) -> str:
        """Store the bytes and return their own URL; raises StoreUnavailable."""
        location = f"{self._url}/{name}"
        with expected_trouble(f"write to {self._url}"):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await asyncio.to_thread(write_file, location, data)
        return location

    async def delete(self, location: str) -> None:
        """Remove a file; one that is gone already is fine."""
        with expected_trouble(f"remove a file of {self._url}"):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await asyncio.to_thread(delete_file, location)


async def read(location: str) -> bytes | None:
    """Return the bytes at a URL, None when there is no such file; raises StoreUnavailable when it cannot be reached."""
    with expected_trouble("read a checkpoint's file"):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await asyncio.to_thread(read_file, location)


def write_file(location: str, data: bytes) -> None:
    """Write a file, on the disk when this returns."""
    files, path = url_to_fs(location)
    files.makedirs(files._parent(path), exist_ok=True)
    with files.open(path, "wb") as file:
        file.write(data)
        if isinstance(files, LocalFileSystem):
            file.flush()
            os.fsync(file.fileno())


def read_file(location: str) -> bytes | None:
    """Return a file's bytes, or None."""
    files, path = url_to_fs(location)
    try:
        data: bytes = files.cat_file(path)
    except FileNotFoundError:
        return None
    return data


def delete_file(location: str) -> None:
    """Remove a file if it is there."""
    files, path = url_to_fs(location)
    if files.exists(path):
        files.rm_file(path)
