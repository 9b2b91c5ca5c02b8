"""The compose files keep their promises: order, secrets, healthchecks over TCP, clean stops, least privilege."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
GPU = ROOT / "docker-compose.gpu.yml"
SECRETS = {"POSTGRES_PASSWORD": "p@ss:w/rd", "LIVEWICK_API_KEYS": "one,two"}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def services() -> Json:
    services: Json = yaml.safe_load(COMPOSE.read_text())["services"]
    return services


def test_the_order_is_database_migration_service(services: Json) -> None:
    assert list(services) == ["db", "migrate", "app"]
    assert services["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert services["app"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["app"]["depends_on"]["db"] == {"condition": "service_healthy"}
    assert services["migrate"]["restart"] == "no"
    assert services["migrate"]["command"] == ["migrate"]
    assert services["app"]["command"] == ["serve"]


def test_failures_89_the_database_is_healthy_only_over_tcp(services: Json) -> None:
    test = services["db"]["healthcheck"]["test"]
    assert test[:4] == ["CMD", "pg_isready", "-h", "127.0.0.1"]


def test_the_service_is_healthy_only_over_tcp(services: Json) -> None:
    assert services["app"]["healthcheck"]["test"] == ["CMD", "python", "/opt/livewick/healthcheck.py"]
    source = (ROOT / "docker" / "healthcheck.py").read_text()
    assert "127.0.0.1" in source
    assert "/health/live" in source


def test_failures_93_an_init_reaps_what_healthchecks_leave_behind(services: Json) -> None:
    assert all(service["init"] is True for service in services.values())


def test_failures_91_there_is_time_to_stop(services: Json) -> None:
    assert _seconds(services["app"]["stop_grace_period"]) >= 15
    assert _seconds(services["db"]["stop_grace_period"]) >= 15


def _seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def test_failures_21_no_shared_host_memory_is_needed(services: Json) -> None:
    for name in ("app", "migrate"):
        assert "ipc" not in services[name]
        assert "shm_size" not in services[name]


def test_secrets_are_required_and_named_when_missing() -> None:
    text = COMPOSE.read_text()
    for name in SECRETS:
        uses = re.findall(r"\$\{" + name + r"[^}]*\}", text)
        assert uses
        assert all(use.startswith("${" + name + ":?set " + name) for use in uses)


def test_no_secret_stands_in_an_address(services: Json) -> None:
    for service in (services["app"], services["migrate"]):
        assert service["environment"]["LIVEWICK_DATABASE_URL"] == "postgresql+asyncpg://livewick@db:5432/livewick"


def test_the_service_runs_with_the_least_it_needs(services: Json) -> None:
    for name in ("app", "migrate"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["tmpfs"] == ["/tmp"]
        assert "privileged" not in services[name]
    assert all("no-new-privileges:true" in service["security_opt"] for service in services.values())
    assert "ports" not in services["db"]


def test_the_port_is_published_to_this_machine_only(services: Json) -> None:
    assert services["app"]["ports"] == ["${PUBLISH:-127.0.0.1:8000}:8000"]


def test_data_outlives_containers_in_a_named_volume(services: Json) -> None:
    assert services["db"]["volumes"] == ["db:/var/lib/postgresql/data"]
    assert "db" in yaml.safe_load(COMPOSE.read_text())["volumes"]
    assert {services[name]["restart"] for name in ("db", "app")} == {"unless-stopped"}


def test_every_setting_can_be_given_through_compose(services: Json) -> None:
    fixed_in_the_image = {"LIVEWICK_HOST", "LIVEWICK_PORT"}
    wanted = {f"LIVEWICK_{name.upper()}" for name in Settings.model_fields} - fixed_in_the_image
    given = {name for name in services["app"]["environment"] if name.startswith("LIVEWICK_")}
    assert given == wanted
    assert services["migrate"]["environment"] == services["app"]["environment"]


def test_the_gpu_override_reserves_a_device_and_its_own_image() -> None:
    services = yaml.safe_load(GPU.read_text())["services"]
    app = services["app"]
    assert services["migrate"]["image"] == app["image"]
    (device,) = app["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert app["image"] != yaml.safe_load(COMPOSE.read_text())["services"]["app"]["image"]
    assert app["environment"] == {"LIVEWICK_DEVICE": "${LIVEWICK_DEVICE:-cuda}"}


def test_the_example_environment_names_every_variable_that_compose_reads() -> None:
    read = set(re.findall(r"\$\{(\w+)[:}]", COMPOSE.read_text() + GPU.read_text()))
    example = (ROOT / ".env.example").read_text()
    shown = set(re.findall(r"^#?(\w+)=", example, re.MULTILINE))
    assert set(SECRETS) | {"PUBLISH", "TORCH_INDEX"} <= shown
    assert read - shown <= {"LIVEWICK_LOG_FORMAT", "LIVEWICK_DEVICE", "TORCH_GPU_INDEX"}
    assert not re.search(r"^(POSTGRES_PASSWORD|LIVEWICK_API_KEYS)=.+", example, re.MULTILINE)


def _config(environment: dict[str, str], *files: Path) -> subprocess.CompletedProcess[str]:
    names = [part for file in files for part in ("-f", str(file))]
    command = ["docker", "compose", *names, "--env-file", os.devnull, "config", "--format", "json"]
    inherited = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=30)


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30).returncode == 0


@pytest.fixture(scope="module")
def compose() -> None:
    if not _has_compose():
        pytest.skip("docker's compose plugin is not here; the files are checked as YAML only")


@pytest.mark.usefixtures("compose")
def test_docker_compose_accepts_both_files() -> None:
    done = _config(SECRETS, COMPOSE, GPU)
    assert done.returncode == 0, done.stderr
    app = json.loads(done.stdout)["services"]["app"]
    assert app["environment"]["PGPASSWORD"] == SECRETS["POSTGRES_PASSWORD"]
    assert app["ports"][0]["host_ip"] == "127.0.0.1"


@pytest.mark.usefixtures("compose")
@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_docker_compose_refuses_to_start_without_a_secret(missing: str) -> None:
    done = _config({name: value for name, value in SECRETS.items() if name != missing}, COMPOSE)
    assert done.returncode != 0
    assert missing in done.stderr
