"""The file a command writes: trouble with it is one line that names it, and the file is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.out_file import cannot_write, check_out
from service.ports import LivewickError
from service.replay import StepWriter
from tests.builders import make_batch

FULL = Path("/dev/full")


def test_an_error_without_a_reason_of_its_own_is_told_as_it_is() -> None:
    with pytest.raises(LivewickError, match=r"^x\.csv cannot be written: all broken$"), cannot_write(Path("x.csv")):
        raise OSError("all broken")


@pytest.mark.parametrize("name", ["/", ".", "/dev/full", "/dev/stdout"])
def test_what_is_no_regular_file_is_refused(name: str) -> None:
    with pytest.raises(LivewickError, match="no regular file"):
        check_out(Path(name), {})


def test_a_file_in_use_is_found_before_it_is_there_and_through_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("x.db", "x"):  # of the second, what is written first is the file in use
        taken = {"the database": tmp_path / ("x.db" if name == "x.db" else "x.partial"), "nothing": None}
        with pytest.raises(LivewickError, match="is the database"):
            check_out(tmp_path / "link" / name, taken)
    check_out(tmp_path / "y", {"the database": tmp_path / "x.db"})


@pytest.mark.skipif(not FULL.exists(), reason="the kernel has no full device")
def test_steps_onto_a_full_disk_are_one_clear_line_and_the_file_is_closed() -> None:
    writer = StepWriter(FULL)
    writer.__enter__()
    writer.write(make_batch(0, 1).steps[0], None)
    with pytest.raises(LivewickError, match=r"^/dev/full cannot be written: No space left on device$"):
        writer.__exit__()
    assert writer._file.closed
