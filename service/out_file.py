"""OutFile: may a command write the file that its user named? Else one clear line, and nothing was touched."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from service.ports import LivewickError


def check_out(out: Path, taken: Mapping[str, Path | None]) -> None:
    """Raise LivewickError for an ``out`` that is there and no regular file, or one of the files in use.

    ``taken`` says what they are. What is written first has the name ``OUT.partial``, so it must be free as well. A
    symbolic link counts as no regular file: it would be replaced, and what it points at would not be written.
    """
    for path in (out, out.with_name(out.name + ".partial")) if out.name else (out,):
        with cannot_write(out):
            if not _is_free_or_regular(path):
                raise LivewickError(f"{out} cannot be written: {path} is no regular file")
            for what, other in taken.items():
                if other is not None and _same(path, other):
                    raise LivewickError(f"{out} cannot be written: {path} is {what}")


@contextmanager
def cannot_write(out: Path) -> Iterator[None]:
    """Tell trouble of the file system as LivewickError that names ``out``."""
    try:
        yield
    except OSError as error:
        raise LivewickError(f"{out} cannot be written: {error.strerror or error}") from error


def _is_free_or_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def _same(path: Path, other: Path) -> bool:
    """Tell whether both names lead to one file, also one that is not there yet."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return path.exists() and other.exists() and path.samefile(other)
