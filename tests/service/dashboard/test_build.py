"""The page's third-party files: pinned, fetched whole or not at all, and clear when that fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from service.dashboard import build as module
from service.dashboard.build import FILES, FOLDER, BuildFailed, build, install

LOCK = json.loads((FOLDER / "package-lock.json").read_text())


class FakeNpm:
    """Installs files that say which call made them; ``missing`` is one it does not bring."""

    def __init__(self, missing: str | None = None) -> None:
        self.calls = 0
        self.missing = missing

    def __call__(self, folder: Path, scratch: Path) -> Path:
        self.calls += 1
        modules = scratch / "node_modules"
        for name in FILES:
            if name != self.missing:
                (modules / name).parent.mkdir(parents=True, exist_ok=True)
                (modules / name).write_text(f"call {self.calls}")
        return modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "dashboard"
    folder.mkdir()
    (folder / "package.json").write_text("{}")
    (folder / "package-lock.json").write_text("one")
    return folder


def test_files_are_fetched_once_and_again_when_the_lock_changes(folder: Path, tmp_path: Path) -> None:
    npm, vendor = FakeNpm(), tmp_path / "static" / "vendor"
    assert build(folder, vendor, npm) is True
    assert all((vendor / target).read_text() == "call 1" for target in FILES.values())
    assert build(folder, vendor, npm) is False
    (folder / "package-lock.json").write_text("two")
    assert build(folder, vendor, npm) is True
    assert all((vendor / target).read_text() == "call 2" for target in FILES.values())


def test_a_lost_file_is_fetched_again(folder: Path, tmp_path: Path) -> None:
    npm, vendor = FakeNpm(), tmp_path / "static" / "vendor"
    build(folder, vendor, npm)
    (vendor / next(iter(FILES.values()))).unlink()
    assert build(folder, vendor, npm) is True


def test_after_a_failure_what_was_there_is_still_there(folder: Path, tmp_path: Path) -> None:
    vendor = tmp_path / "static" / "vendor"
    build(folder, vendor, FakeNpm())
    (folder / "package-lock.json").write_text("two")
    lost = next(iter(FILES))
    with pytest.raises(BuildFailed, match=re.escape(f"the package has no {lost}")):
        build(folder, vendor, FakeNpm(missing=lost))
    assert all((vendor / target).read_text() == "call 1" for target in FILES.values())
    assert [path.name for path in vendor.parent.iterdir()] == ["vendor"]


def test_without_network_npm_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(BuildFailed, match=r"npm ci ended with status 1: .+") as failure:
        install(FOLDER, scratch)
    assert "\n" not in str(failure.value)


def test_a_failure_is_one_clear_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> bool:
        raise BuildFailed("npm ci did not finish within 180 s")

    monkeypatch.setattr(module, "build", fail)
    assert module.main() == 1
    line = "dashboard: npm ci did not finish within 180 s; the page will work without charts\n"
    assert capsys.readouterr().err == line


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match=r"package-lock\.json cannot be read: No such file"):
        build(tmp_path, tmp_path / "vendor", FakeNpm())


def test_every_package_is_pinned_with_its_hash_and_names_no_host() -> None:
    packages = {name: package for name, package in LOCK["packages"].items() if name}
    assert {"node_modules/lightweight-charts", "node_modules/swagger-ui-dist"} <= set(packages)
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
