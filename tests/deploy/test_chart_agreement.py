"""The chart says what the code and the compose file say: variables, ports, paths, names, images and time limits."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from torch.distributed.run import parse_args

from services.coordinator.config import ENVIRONMENT as COORDINATOR
from services.coordinator.config import CoordinatorConfig
from services.coordinator.metrics import CoordinatorMetrics
from services.engine.config import ENVIRONMENT_PREFIX, EngineConfig, read_config
from services.reward.config import ENVIRONMENT as REWARD
from services.reward.config import RewardSettings
from services.rollout.config import ENVIRONMENT as ROLLOUT
from services.rollout.config import WorkerConfig
from services.trainer import launch
from services.trainer.config import ENVIRONMENT as TRAINER
from services.trainer.config import TrainerSettings
from sluice.local.stack import TORCH_ENVIRONMENT
from tests.deploy import compose_file
from tests.deploy.charts import NAMESPACE, Rendered, Resource, command_line, expand, render, render_example

KNOWN = {
    "coordinator": set(COORDINATOR.values()),
    "reward": set(REWARD.values()),
    "rollout": set(ROLLOUT.values()),
    "trainer": set(TRAINER.values()),
    "engine": {ENVIRONMENT_PREFIX + name.upper() for name in EngineConfig.model_fields},
}
COMPOSE = {
    "coordinator": "coordinator",
    "reward": "reward-0",
    "rollout": "rollout-0",
    "trainer": "trainer",
    "engine": "engine-0",
}
SUFFIX = f"{NAMESPACE}.svc.cluster.local"


def container(rendered: Rendered, service: str) -> Resource:
    return rendered.container("rollout", "engine") if service == "engine" else rendered.container(service)


def settings(rendered: Rendered, service: str) -> Any:
    """What the service's own reader makes of the variables that the chart gives it."""
    made = container(rendered, service)
    given = rendered.environment(made)
    match service:
        case "coordinator":
            return CoordinatorConfig.from_environment(given)
        case "reward":
            return RewardSettings.from_environment(given)
        case "rollout":
            return WorkerConfig.from_environment(given)
        case "engine":
            return read_config([str(argument) for argument in made.get("args", [])], given)
        case _:
            return TrainerSettings.from_environment(given)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("service", KNOWN)
def test_a_service_reads_every_variable_that_it_is_given_and_accepts_it(service: str) -> None:
    rendered = render_example("laptop")
    settings(rendered, service)
    given = rendered.environment(container(rendered, service))
    assert {name for name in given if name.startswith(("SLUICE_", "ENGINE_"))} <= KNOWN[service]


@pytest.mark.parametrize("service", KNOWN)
def test_compose_and_chart_give_a_service_the_same_variables(service: str) -> None:
    rendered = render_example("laptop")
    given = rendered.environment(container(rendered, service))
    ours = {name for name in given if name in KNOWN[service]}
    theirs = {name.removesuffix("_FILE") for name in compose_file.environment(COMPOSE[service])} & KNOWN[service]
    # Keys of the engine are not set where only the worker's own container network reaches it.
    assert theirs - ours <= {"ENGINE_MAX_RUNNING_REQUESTS"}  # a flag in the example
    for name in ("SLUICE_METRICS_PORT", "SLUICE_API_PORT", "ENGINE_PORT", "SLUICE_DATA_DIR", "SLUICE_CACHE_DIR"):
        if name in ours:
            assert given[name] == compose_file.environment(COMPOSE[service])[name], name
    for name in ("SLUICE_REWARD_BIND", "SLUICE_WEIGHTS_BIND"):
        if name in ours:
            assert given[name] == compose_file.environment(COMPOSE[service])[name], name


def test_compose_and_chart_have_the_same_services_and_folders() -> None:
    rendered = render_example("laptop")
    assert COMPOSE.keys() == compose_file.SERVICES.keys()
    for service, name in COMPOSE.items():
        mounted = [mount["mountPath"] for mount in container(rendered, service)["volumeMounts"]]
        theirs = [path for path in compose_file.volumes(name) if path.startswith(("/data", "/cache"))]
        assert all(any(Path(path).is_relative_to(ours) for ours in mounted) for path in theirs), service


def test_brokers_and_torch_are_set_as_on_one_machine() -> None:
    rendered = render_example("laptop")
    ours = rendered.get("ConfigMap", "sluice-nats")["data"]["nats.conf"]
    theirs = (compose_file.ROOT / "deploy" / "compose" / "nats.conf").read_text(encoding="utf-8")
    for limit in ("max_payload", "max_memory_store"):
        assert re.findall(rf"{limit}: (\d+)", ours) == re.findall(rf"{limit}: (\d+)", theirs) != []
    for service in ("engine", "trainer"):
        assert rendered.environment(container(rendered, service)).items() >= TORCH_ENVIRONMENT.items()
    gpu = render()
    assert not TORCH_ENVIRONMENT.keys() & gpu.environment(container(gpu, "trainer")).keys()


def test_compose_and_chart_use_the_same_images() -> None:
    rendered, services = render_example("laptop"), compose_file.resolved()
    for service, name in COMPOSE.items():
        assert container(rendered, service)["image"] == services[name]["image"], service
    for broker in ("nats", "redis"):
        assert rendered.container(broker)["image"] == services[broker]["image"]
    assert render().container("rollout", "engine")["image"] == services["sglang"]["image"]


def test_compose_and_chart_start_sglang_with_the_same_flags() -> None:
    def flags(words: list[str]) -> set[str]:
        named = {word.partition("=")[0] for word in words if word.startswith("--")}
        return {"--tensor-parallel-size" if name == "--tp-size" else name for name in named}

    ours = flags(list(command_line(render().container("rollout", "engine"))))
    # The compose file's network has no stranger on it, and its model says its type itself.
    assert ours - flags(compose_file.resolved()["sglang"]["command"]) == {"--api-key", "--dtype"}


@pytest.mark.parametrize("service", KNOWN)
def test_ports_of_a_container_are_those_that_its_service_opens(service: str) -> None:
    rendered = render_example("laptop")
    read = settings(rendered, service)
    opened = {
        "coordinator": lambda: {"api": read.api_port},
        "reward": lambda: {"grpc": port_of(read.bind), "metrics": read.metrics_port},
        "rollout": lambda: {"metrics": read.metrics_port},
        "engine": lambda: {"engine": read.port},
        "trainer": lambda: {"metrics": read.metrics_port, "weights": port_of(read.weights_bind)},
    }[service]()
    ports = container(rendered, service)["ports"]
    assert {port["name"]: port["containerPort"] for port in ports} == opened


def test_every_address_is_that_of_a_service_with_that_port() -> None:
    rendered = render_example("laptop")
    offered = {
        (resource["metadata"]["name"], port["port"])
        for resource in rendered.of_kind("Service")
        for port in resource["spec"]["ports"]
    }
    worker, trainer = settings(rendered, "rollout"), settings(rendered, "trainer")
    called = {(urlsplit(url).hostname, urlsplit(url).port) for url in (worker.nats_url, trainer.nats_url)}
    called.add((urlsplit(worker.redis_url).hostname, urlsplit(worker.redis_url).port))
    (reward,) = worker.reward_addresses
    assert settings(rendered, "coordinator").reward_addresses == (reward,)
    called.add((reward.removeprefix("dns:///").removesuffix(f".{SUFFIX}:50051"), port_of(reward)))
    host, _, port = trainer.weights_advertise.rpartition(":")
    called.add((host.partition(".")[2], int(port)))
    assert called <= offered
    assert worker.engine_url == f"http://127.0.0.1:{settings(rendered, 'engine').port}"


def test_a_network_policy_opens_what_callers_need_and_nothing_else() -> None:
    policies = {r["metadata"]["name"].removeprefix("sluice-"): r for r in render().of_kind("NetworkPolicy")}
    opened = {
        (
            peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"],
            name,
            rule.get("ports", [{}])[0].get("port"),
        )
        for name, policy in policies.items()
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        if peer.get("podSelector", {}).get("matchLabels")
    }
    assert opened == {
        *((caller, "nats", 4222) for caller in ("coordinator", "rollout", "trainer", "smoke")),
        ("nats", "nats", 6222),
        *((caller, "redis", 6379) for caller in ("coordinator", "rollout")),
        *((caller, "reward", 50051) for caller in ("coordinator", "rollout", "smoke")),
        ("rollout", "trainer", 50061),
        ("trainer", "trainer", None),  # ranks talk over ports that they choose
    }


def test_worker_and_engine_see_weights_under_the_same_paths() -> None:
    for rendered in (render_example("laptop"), render("--set=run.weightsTransport=grpc")):
        mounts = [
            {mount["mountPath"]: mount["name"] for mount in made["volumeMounts"]}
            for made in (container(rendered, "rollout"), container(rendered, "engine"))
        ]
        shared = {"/assets", "/cache"} | ({"/data"} if rendered is render_example("laptop") else set())
        for path in shared:
            assert mounts[0][path] == mounts[1][path]
        assert "/cache" in rendered.environment(container(rendered, "rollout"))["SLUICE_CACHE_DIR"]
        assert ("/data" in mounts[0]) == ("/data" in mounts[1]) == ("/data" in shared)


def test_the_coordinator_has_a_folder_for_the_files_of_evaluations_where_pods_on_any_node_can_mount_it() -> None:
    one_writer = "--set=data.accessModes={ReadWriteOnce},run.weightsTransport=grpc"
    for rendered, there in ((render_example("laptop"), True), (render(), True), (render(one_writer), False)):
        mounted = [mount["mountPath"] for mount in container(rendered, "coordinator")["volumeMounts"]]
        assert ("/data" in mounted) == there
        assert (settings(rendered, "coordinator").data_dir == Path("/data")) == there
        claims = [volume.get("persistentVolumeClaim", {}) for volume in rendered.pod("coordinator")["spec"]["volumes"]]
        assert ({"claimName": "sluice-data"} in claims) == there


def test_a_pod_gets_longer_to_end_than_its_service_takes() -> None:
    rendered = render("--set=rollout.drainSeconds=700,reward.stopSeconds=33")
    grace = {name: pod["spec"].get("terminationGracePeriodSeconds", 0) for name, pod in rendered.pods()}
    assert grace["rollout"] > settings(rendered, "rollout").drain_seconds + 10
    pause = int(container(rendered, "reward")["lifecycle"]["preStop"]["exec"]["command"][1])
    assert grace["reward"] > settings(rendered, "reward").stop_seconds + pause
    assert grace["coordinator"] > int(container(rendered, "coordinator")["lifecycle"]["preStop"]["exec"]["command"][1])


def test_the_engine_stays_until_its_worker_has_closed_its_port() -> None:
    rendered = render()
    command = container(rendered, "engine")["lifecycle"]["preStop"]["exec"]["command"]
    port = settings(rendered, "rollout").metrics_port
    with socket.create_server(("127.0.0.1", 0)) as worker:
        here = worker.getsockname()[1]
        assert f"/{port})" in command[-1]
        stopping = subprocess.Popen([*command[:-1], command[-1].replace(f"/{port})", f"/{here})")])
        with pytest.raises(subprocess.TimeoutExpired):
            stopping.wait(1.5)
    assert stopping.wait(10) == 0


def test_pods_are_added_by_a_metric_that_the_coordinator_has() -> None:
    registry = CollectorRegistry()
    CoordinatorMetrics(registry).in_flight.labels(run="r").set(1)
    scaled = render("--set=rollout.autoscaling.enabled=true,rollout.autoscaling.prometheusAddress=http://p")
    (trigger,) = scaled.get("ScaledObject", "sluice-rollout")["spec"]["triggers"]
    (name,) = re.findall(r"sluice_\w+", trigger["metadata"]["query"])
    assert name in {metric.name for metric in registry.collect()}
    assert "replicas" not in scaled.get("Deployment", "sluice-rollout")["spec"]


def test_prometheus_calls_jobs_and_ports_as_in_the_compose_stack() -> None:
    rendered = render("--set=monitoring.serviceMonitors.enabled=true")
    jobs = {}
    for monitor in rendered.of_kind("ServiceMonitor"):
        component = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        ports = {
            p["name"]: p["containerPort"] for c in rendered.pod(component)["spec"]["containers"] for p in c["ports"]
        }
        for endpoint in monitor["spec"]["endpoints"]:
            jobs[endpoint["relabelings"][0]["replacement"]] = ports[endpoint["port"]]
    theirs = {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in compose_file.prometheus()["scrape_configs"]}
    assert jobs == theirs


@pytest.mark.parametrize("kind", ["StatefulSet", "JobSet", "LeaderWorkerSet"])
def test_torchrun_understands_its_command_line_and_the_trainer_its_variables(kind: str) -> None:
    rendered = render("--set", f"trainer.kind={kind},trainer.nodes=4,trainer.ranksPerNode=8")
    made = container(rendered, "trainer")
    variables = rendered.environment(made) | {
        "JOB_COMPLETION_INDEX": "3",
        "LWS_WORKER_INDEX": "3",
        "LWS_LEADER_ADDRESS": f"sluice-trainer-0.sluice-trainer.{NAMESPACE}",
    }
    assert made["command"] == ["python", "-m", launch.__name__]
    words = [*(expand(word, variables) for word in made["args"]), "--module", launch.MODULE]
    read = parse_args(words)  # type: ignore[no-untyped-call]  # torch's own gap
    assert (read.nnodes, read.nproc_per_node, read.training_script) == ("4", "8", "services.trainer")
    first = {"JobSet": "sluice-trainer-ranks-0-0"}.get(kind, "sluice-trainer-0")
    assert variables["SLUICE_WEIGHTS_ADVERTISE"] == f"{first}.sluice-trainer:50061"
    if kind == "StatefulSet":
        assert read.rdzv_endpoint == f"{first}.sluice-trainer.{SUFFIX}:29400"
        pods = [f"{first[:-1]}{i}.sluice-trainer.{SUFFIX}" for i in (*range(12), 100)]
        assert min(pods) == pods[0]  # torchrun gives rank 0 to the address that sorts first
        # Without it restarted ranks would read the addresses of those before them.
        assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    else:
        assert (read.node_rank, read.master_addr.partition(".")[0], read.max_restarts) == (3, first, 0)


def test_a_trainer_of_one_rank_is_started_without_torchrun_and_keeps_its_exit_codes() -> None:
    assert command_line(container(render_example("laptop"), "trainer")) == ["python", "-m", "services.trainer"]
