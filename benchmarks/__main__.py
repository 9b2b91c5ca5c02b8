"""``make bench``: every benchmark in turn, each with a table on the terminal and JSON in ``benchmarks/results/``."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("learning", "forecasting", "storage")


def main() -> int:
    """Run them in processes of their own; a benchmark without its data says so and the next one runs."""
    commands = [[sys.executable, "-m", f"benchmarks.{name}"] for name in BENCHMARKS]
    codes = [subprocess.run(command, check=False).returncode for command in commands]  # noqa: S603
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
