"""Coverage-guided fuzzing: ``python -m tests.fuzz TARGET [SECONDS]``, after ``pip install atheris``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

NAMES = ("row", "candle_file", "client_frame")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("seconds", type=int, nargs="?", default=300)
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    # Only what is imported inside is watched for new paths.
    with atheris.instrument_imports(include=["service", "models"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    target, seeds = TARGETS[options.target]
    corpus = Path(tempfile.mkdtemp(prefix=f"livewick-fuzz-{options.target}-"))
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={options.seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=4096"]
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={corpus}/", *limits], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
