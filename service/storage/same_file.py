"""SameFile: notices that an SQLite file was deleted or replaced under an open connection, which itself never does."""

from __future__ import annotations

from pathlib import Path

from service.ports import StoreUnavailable


class SameFile:
    """The file at ``path`` as it was when it was opened first.

    What is written to a deleted file is gone when the last connection closes, so nobody may write there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: tuple[int, int] | None = None

    def note(self) -> None:
        """Remember the file, just opened, unless one is remembered already."""
        if self._opened is None:
            self._opened = self._found()

    def check(self) -> None:
        """Raise StoreUnavailable while another file or none is in its place."""
        if self._opened is None or self._opened == (found := self._found()):
            return
        if found is None:
            raise StoreUnavailable(f"{self._path} was deleted or moved away: put it back, or restart Livewick")
        raise StoreUnavailable(f"another file is in the place of {self._path}: restart Livewick to use it")

    def _found(self) -> tuple[int, int] | None:
        """Return what tells this file from any other, None when there is none."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino
