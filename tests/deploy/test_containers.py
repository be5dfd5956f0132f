"""Containers are locked down and probed, images are pinned, and no secret is written down."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from services.coordinator.config import CoordinatorConfig
from services.reward.config import RewardSettings
from sluice.local.run import MODEL_MAKERS
from tests.deploy.compose_file import CONTAINERS, ONE_SHOT, ROOT, THEIRS, resolved, text


@pytest.mark.parametrize("container", [name for _, name in CONTAINERS] + list(ONE_SHOT))
def test_our_containers_are_locked_down(container: str) -> None:
    service = resolved()[container]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")


@pytest.mark.parametrize("container", [name for name in resolved() if name not in ONE_SHOT])
def test_what_runs_on_is_probed_and_started_again(container: str) -> None:
    assert resolved()[container]["restart"] == "unless-stopped"
    assert resolved()[container]["healthcheck"]["test"]


@pytest.mark.parametrize("container", ONE_SHOT)
def test_what_runs_once_is_not_started_again(container: str) -> None:
    assert resolved()[container]["restart"] == "no"


def test_every_image_has_an_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, service in resolved().items():
        tag = service["image"].rpartition(":")[2]
        assert re.match(r"v?\d+\.\d+\.\d+", tag), f"{name}: {service['image']}"
        if name not in THEIRS:
            assert tag.removesuffix("-gpu") == project["version"]


def test_ports_are_published_on_this_machine_alone() -> None:
    published = [port for service in resolved().values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_no_secret_is_written_down() -> None:
    secret = re.compile(r"\b((?:[A-Z]+_)*(?:TOKEN|KEY|PASSWORD|SECRET)(?:_[A-Z]+)*)(?:: *|=)(?!-)(\S*)")
    harmless = {"", "#", '"${SLUICE_API_TOKEN:-}"}', "/secrets/api_token", "/grafana-secrets/admin_password"}
    for file in (ROOT / "docker-compose.yml", ROOT / "Dockerfile", *(ROOT / "deploy/compose").rglob("*")):
        if file.is_file() and file.suffix != ".whl":
            written = {value for _, value in secret.findall(file.read_text(encoding="utf-8"))}
            assert written <= harmless, file.name


def test_what_can_be_set_is_listed_with_its_default() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", text())) | passed_on()
    assert used - set(listed()) == set()
    assert set(listed()) - used == {"COMPOSE_PROFILES"}
    for variable, default in re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text()):
        if variable not in ("CPU_REPLICAS", "MODEL", "MODELS"):
            assert listed()[variable] == default, variable
    passed = {name: value for name, value in listed().items() if name in passed_on() and value}
    assert passed
    assert CoordinatorConfig.from_environment(passed) == CoordinatorConfig.from_environment({})
    assert RewardSettings.from_environment(passed) == RewardSettings.from_environment({})


def test_what_the_runbook_tells_to_change_can_be_set() -> None:
    runbook = (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("\n## Runbook\n")[2]
    named = set(re.findall(r"SLUICE_[A-Z_]+", runbook))
    assert named
    assert named - set(listed()) == set()


def listed() -> dict[str, str]:
    """Value of every variable in the two files that say what can be set."""
    found: dict[str, str] = {}
    for name in ("env.example", "gpu.env"):
        content = (ROOT / "deploy/compose" / name).read_text(encoding="utf-8")
        found |= dict(re.findall(r"^(?:# )?([A-Z_]+)=(\S*)", content, re.MULTILINE))
    return found


def passed_on() -> set[str]:
    """Variables that a container has as they are where Compose is called, if they are set there."""
    services = resolved().values()
    return {name for service in services for name, value in service.get("environment", {}).items() if value is None}


def test_builds_name_services_and_folders_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for name, service in resolved().items():
        if name not in THEIRS:  # each of ours can be built by itself, so that Compose never looks for it in a registry
            assert service["build"]["args"]["SERVICE"] in extras
            assert f" AS {service['build']['target']}\n" in dockerfile


def test_what_the_dockerfile_copies_is_sent_to_the_builder() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    }
    for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                name = source.replace("${WHEELHOUSE}", "deploy/compose/wheelhouse").rstrip("/")
                assert (ROOT / name).exists()
                assert any(name == folder or name.startswith(f"{folder}/") for folder in allowed), name


def test_the_model_maker_knows_the_models_that_come_with_sluice() -> None:
    script = (ROOT / "deploy/compose/image/sluice-models").read_text(encoding="utf-8")
    folder = '"models/$1"'
    for name, command in MODEL_MAKERS.items():
        assert f"{name}) {command.format(folder)} ;;" in script


def test_the_stand_ins_of_official_images_stand_for_all_that_are_not_ours() -> None:
    local = yaml.safe_load((ROOT / "deploy/compose/local-images.yml").read_text(encoding="utf-8"))["services"]
    assert set(local) == set(THEIRS) - {"sglang"}
    dockerfile = (ROOT / "deploy/compose/local-images.Dockerfile").read_text(encoding="utf-8")
    for broker, stand_in in local.items():
        assert broker == "grafana" or (f" AS {broker}\n" in dockerfile and f"local-{broker}:" in stand_in["image"])
