"""The Dockerfile builds in stages, ends as an ordinary user, and lets signals through."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"

Instruction = tuple[str, str]


def parse(text: str) -> list[list[Instruction]]:
    """Split a Dockerfile into stages of (instruction, arguments); comments and line ends inside are dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages: list[list[Instruction]] = [[]]
    for line in filter(str.strip, joined.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest.strip()))
    return stages


STAGES = parse(DOCKERFILE.read_text())
FINAL = STAGES[-1]


def arguments(word: str, stage: list[Instruction] = FINAL) -> list[str]:
    return [rest for name, rest in stage if name == word]


def test_is_built_in_stages_and_only_results_are_kept() -> None:
    assert len(STAGES) == 4  # what precedes the first FROM, page, build, final
    assert all(re.match(r"python:\$\{PYTHON\}-slim", arguments("FROM", stage)[0]) for stage in STAGES[1:])
    assert not any("pip install" in run for run in arguments("RUN"))
    assert any(copy.startswith("--from=build") for copy in arguments("COPY"))


def test_python_is_one_the_project_supports() -> None:
    (version,) = re.findall(r"PYTHON=3\.(\d+)", arguments("ARG", STAGES[0])[0])
    assert int(version) >= 11


def test_ends_as_a_numeric_ordinary_user() -> None:
    assert arguments("USER") == ["10001:10001"]
    order = [word for word, _ in FINAL]
    assert order.index("USER") < order.index("ENTRYPOINT")


def test_failures_91_the_service_is_started_in_exec_form() -> None:
    command = json.loads(arguments("ENTRYPOINT")[0]) + json.loads(arguments("CMD")[0])
    assert command == ["livewick", "serve"]
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_has_a_healthcheck_in_exec_form() -> None:
    (check,) = arguments("HEALTHCHECK")
    assert json.loads(check.partition("CMD ")[2]) == ["python", "/opt/livewick/healthcheck.py"]


def test_installs_pinned_versions_only() -> None:
    installs = [run for stage in STAGES for run in arguments("RUN", stage) for run in run.split("&&") if "pip " in run]
    assert len(installs) == 4
    assert all("-c constraints.txt" in install for install in installs)


def test_names_no_package_host() -> None:
    text = DOCKERFILE.read_text() + (ROOT / "service" / "dashboard" / "package-lock.json").read_text()
    urls = re.findall(r"https?://[^\s\"']+", text)
    assert [url for url in urls if "github.com/sponsors" not in url] == []
    assert arguments("ARG", STAGES[2]) == ["TORCH_INDEX"]


@pytest.mark.parametrize(
    "path", [".env", ".git/config", "data/livewick.db", ".venv/bin/python", "shared/CONTRACT.md", "tests/builders.py"]
)
def test_secrets_and_data_never_reach_the_builder(path: str) -> None:
    assert not reaches_builder(path)


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "service/app.py", "models/candle.py", "migrations/env.py", "docker/healthcheck.py"]
)
def test_what_is_copied_reaches_the_builder(path: str) -> None:
    assert reaches_builder(path)


def test_everything_copied_from_the_repository_is_there_and_reaches_the_builder() -> None:
    copies = [copy for stage in STAGES[1:] for copy in arguments("COPY", stage) if not copy.startswith("--from")]
    sources = [source for copy in copies for source in copy.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert reaches_builder(source.rstrip("/")), source


def reaches_builder(path: str) -> bool:
    """Apply .dockerignore as the builder does: the last matching line decides; a folder's line covers what is in it."""
    rules = [line.strip() for line in (ROOT / ".dockerignore").read_text().splitlines()]
    ignored = False
    for rule in (rule for rule in rules if rule and not rule.startswith("#")):
        pattern = rule.lstrip("!").rstrip("/")
        parts = [path] + [str(parent) for parent in Path(path).parents if str(parent) != "."]
        if any(fnmatch.fnmatch(part, pattern) or fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parts):
            ignored = not rule.startswith("!")
    return not ignored
