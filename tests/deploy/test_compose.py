"""The compose file says what the code says: services, variables, ports, folders, limits and order."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.coordinator.config import CoordinatorConfig
from services.engine.config import ENVIRONMENT_PREFIX, EngineConfig, read_config
from services.reward.config import RewardSettings
from services.rollout.config import WorkerConfig
from services.trainer.config import TrainerSettings
from sluice.local.stack import TORCH_ENVIRONMENT, Stack, StackOptions, plan_stack
from tests.deploy.compose_file import (
    CONTAINERS,
    ONE_SHOT,
    ROOT,
    SERVICES,
    THEIRS,
    aliases,
    environment,
    prometheus,
    resolved,
    volumes,
)

METRICS_PORTS = {"coordinator": 8000, "rollout": 9101, "reward": 9102, "trainer": 9103, "engine": 30000}


@pytest.fixture
def local(tmp_path: Path) -> Stack:
    """What `sluice up` would start."""
    return plan_stack(StackOptions(tmp_path, Path("models/tiny"), rollout_workers=2))


def test_every_container_is_one_of_ours_or_of_theirs() -> None:
    assert {name for _, name in CONTAINERS} | set(THEIRS) | set(ONE_SHOT) == set(resolved())


@pytest.mark.parametrize(("service", "container"), CONTAINERS)
def test_every_variable_is_one_that_the_service_reads(service: str, container: str) -> None:
    assert {name for name in environment(container) if name.startswith(("SLUICE_", "ENGINE_"))} <= known(service)


@pytest.mark.parametrize("container", ["demo", "cli"])
def test_every_variable_of_the_command_line_is_one_that_it_reads(container: str) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "sluice" / "cli").glob("*.py"))
    names = {name.removesuffix("_FILE") for name in environment(container)}
    assert {name for name in names if f'"{name}"' not in code} == set()


@pytest.mark.parametrize("container", [name for _, name in CONTAINERS])
def test_every_service_accepts_its_variables(container: str, tmp_path: Path) -> None:
    given = environment(container)
    if "SLUICE_API_TOKEN_FILE" in given:
        secret = tmp_path / "api_token"
        secret.write_text("drawn at the first start\n")
        given["SLUICE_API_TOKEN_FILE"] = str(secret)
    match container.partition("-")[0]:
        case "coordinator":
            assert CoordinatorConfig.from_environment(given).api_token == "drawn at the first start"
        case "reward":
            assert RewardSettings.from_environment(given).metrics_port == METRICS_PORTS["reward"]
        case "engine":
            assert read_config([], given).port == METRICS_PORTS["engine"]
        case "rollout":
            assert len(WorkerConfig.from_environment(given).reward_addresses) == len(SERVICES["reward"])
        case "trainer":
            assert TrainerSettings.from_environment(given).device == ("cuda" if container.endswith("gpu") else "cpu")


def test_every_address_is_that_of_a_container_that_listens_there() -> None:
    nats = int(re.findall(r'^listen: "0.0.0.0:(\d+)"', conf("nats"), re.MULTILINE)[0])
    redis = int(re.findall(r"^port (\d+)", conf("redis"), re.MULTILINE)[0])
    listening = {("nats", nats), ("redis", redis), ("sglang", sglang_port())}
    listening |= {(name, int(environment(name)["ENGINE_PORT"])) for name in SERVICES["engine"]}
    listening |= {(name, port_of(environment(name)["SLUICE_REWARD_BIND"])) for name in SERVICES["reward"]}
    listening |= {
        (alias, port_of(environment(name)["SLUICE_WEIGHTS_BIND"]))
        for name in SERVICES["trainer"]
        for alias in aliases(name)
    }
    listening.add(("coordinator", int(environment("coordinator")["SLUICE_API_PORT"])))
    called: set[tuple[str | None, int | None]] = set()
    for name in (*(container for _, container in CONTAINERS), "demo", "cli"):
        for variable, value in environment(name).items():
            if variable.endswith("_URL"):
                called.add((urlsplit(value).hostname, urlsplit(value).port))
            if variable in ("SLUICE_REWARD_ADDRESSES", "SLUICE_WEIGHTS_ADVERTISE"):
                called |= {(part.rpartition(":")[0], port_of(part)) for part in value.split(",")}
    assert len(called) >= 9
    assert called - listening == set()


def test_prometheus_finds_every_replica_of_every_service_at_its_port() -> None:
    jobs = {job["job_name"].removeprefix("sluice-"): job["dns_sd_configs"][0] for job in prometheus()["scrape_configs"]}
    assert {name: job["port"] for name, job in jobs.items()} == METRICS_PORTS
    for service, containers in SERVICES.items():
        for container in containers:
            assert jobs[service]["names"][0] in aliases(container)
    assert "engine" in aliases("sglang")
    assert sglang_port() == METRICS_PORTS["engine"]


@pytest.mark.parametrize(("service", "container"), CONTAINERS)
def test_a_service_serves_its_metrics_and_is_probed_at_its_port(service: str, container: str) -> None:
    given = environment(container)
    names = {"coordinator": "SLUICE_API_PORT", "engine": "ENGINE_PORT"}
    assert int(given[names.get(service, "SLUICE_METRICS_PORT")]) == METRICS_PORTS[service]
    hosts = {"coordinator": "SLUICE_API_HOST", "engine": "ENGINE_HOST"}
    assert given[hosts.get(service, "SLUICE_METRICS_HOST")] == "0.0.0.0"
    program, probe = resolved()[container]["healthcheck"]["test"][1:]
    assert (ROOT / "deploy/compose/image" / program).is_file()
    assert re.fullmatch(rf"{METRICS_PORTS[service]}/(readyz|health)", probe)


def test_a_worker_and_its_engine_see_weights_cache_and_models_under_the_same_paths() -> None:
    for worker, engine in (("rollout-0", "engine-0"), ("rollout-1", "engine-1"), ("rollout-gpu", "sglang")):
        assert urlsplit(environment(worker)["SLUICE_ENGINE_URL"]).hostname == engine
        cache = environment(worker)["SLUICE_CACHE_DIR"]
        assert volumes(worker)[cache] == (volumes(engine)[cache][0], False)
        for path in ("/data/weights", "/app/models"):
            assert volumes(worker)[path] == volumes(engine)[path] == (path.rpartition("/")[2], True)
    assert volumes("engine-0")["/cache"] != volumes("engine-1")["/cache"]


@pytest.mark.parametrize("container", SERVICES["trainer"])
def test_the_trainer_keeps_weights_and_checkpoints_in_volumes(container: str) -> None:
    settings = TrainerSettings.from_environment(environment(container))
    assert volumes(container)[str(settings.data_dir)] == ("checkpoints", False)
    assert volumes(container)[str(settings.weights_dir)] == ("weights", False)


def test_the_files_of_evaluations_outlive_the_coordinator_where_the_command_line_reads_them() -> None:
    settings = CoordinatorConfig.from_environment(environment("coordinator") | {"SLUICE_API_TOKEN_FILE": ""})
    assert volumes("coordinator")[str(settings.data_dir)] == ("checkpoints", False)
    assert volumes("cli")[str(settings.data_dir)] == ("checkpoints", True)


@pytest.mark.parametrize("container", ["nats", "redis", "prometheus", "alertmanager", "grafana", "coordinator"])
def test_every_file_and_folder_that_is_mounted_exists(container: str) -> None:
    sources = [Path(source) for source, _ in volumes(container).values() if source.startswith("/")]
    assert sources
    assert [source for source in sources if not source.exists()] == []


def test_brokers_have_the_limits_that_they_have_on_one_machine(local: Stack) -> None:
    [(_, nats)] = [(path, content) for path, content in local.files.items() if path.name == "nats.conf"]
    limits = r"(max_payload|max_memory_store|max_file_store): (\d+)"
    assert dict(re.findall(limits, conf("nats"))) == dict(re.findall(limits, nats))
    assert len(re.findall(limits, nats)) == 3
    [valkey] = [service for service in local.services if service.name == "valkey"]
    flags = valkey.commands[0].argv[1:]
    options = dict(zip(flags[::2], flags[1::2], strict=True))
    of_machine = ("--port", "--bind", "--dir")
    for name, value in options.items():
        if name not in of_machine:
            assert " ".join((name.removeprefix("--"), value or '""')) in conf("redis").splitlines()


@pytest.mark.parametrize("container", ["engine-0", "engine-1", "trainer", "models"])
def test_torch_on_a_cpu_is_set_as_on_one_machine(container: str) -> None:
    assert TORCH_ENVIRONMENT.items() <= environment(container).items()


def test_services_wait_for_those_that_they_wait_for_on_one_machine(local: Stack) -> None:
    names = {"valkey": "redis"}
    for service in local.services:
        if service.name in ("nats", "valkey"):
            continue
        needs = resolved()[service.name].get("depends_on", {})
        for after in service.after:
            if after.partition("-")[2] in ("", "0", "1"):
                assert needs[names.get(after, after)]["condition"] == "service_healthy"


def known(service: str) -> set[str]:
    """Variables that the service's config.py reads; a secret or an address with credentials may be a file."""
    if service == "engine":
        return {ENVIRONMENT_PREFIX + name.upper() for name in EngineConfig.model_fields}
    module = importlib.import_module(f"services.{service}.config")
    names: dict[str, str] = module.ENVIRONMENT
    files = [*getattr(module, "SECRETS", ()), *getattr(module, "URLS", ())]
    return {*names.values(), *(f"{names[field]}_FILE" for field in files)}


def conf(broker: str) -> str:
    return (ROOT / f"deploy/compose/{broker}.conf").read_text(encoding="utf-8")


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def sglang_port() -> int:
    [port] = [part.partition("=")[2] for part in resolved()["sglang"]["command"] if part.startswith("--port=")]
    return int(port)
