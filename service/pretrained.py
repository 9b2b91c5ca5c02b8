"""Pretrained states on disk: what ``livewick pretrain`` writes, and a new run or a replay may begin with."""

from __future__ import annotations

import os
from pathlib import Path

from service.ports import ConfigurationError, LivewickError


def read_pretrained(path: Path | None) -> bytes | None:
    """Read the file; None where none is named. Raises ConfigurationError when it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"LIVEWICK_PRETRAINED: {path} cannot be read: {error.strerror}") from None


def write_pretrained(path: Path, data: bytes) -> None:
    """Write the file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        raise LivewickError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
