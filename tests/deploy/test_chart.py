"""The Helm chart: what a cluster would be told to run, for every set of example values."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from services.engine.access import Keys
from tests.deploy.charts import (
    CHART,
    EVERY_SET,
    EXAMPLES,
    ROOT,
    SETS,
    Resource,
    command_line,
    containers,
    render,
    render_example,
    run_helm,
)

SERVICES = ("coordinator", "reward", "rollout", "trainer", "nats", "redis")


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda path: path.stem if path else "defaults")
def test_helm_finds_nothing_to_complain_about(example: Path | None) -> None:
    run_helm("lint", "--strict", str(CHART), *(["--values", str(example)] if example else []))


def validate(resources: Sequence[Resource]) -> list[str]:
    """What Kubernetes 1.31 would not take; `make chart-check` asks older and newer ones."""
    command = [sys.executable, "-m", "chart.validate", "1.31"]
    text, path = json.dumps(list(resources)), {"PYTHONPATH": str(ROOT / "scripts")}
    return subprocess.run(
        command, input=text, env=path, capture_output=True, text=True, check=False
    ).stderr.splitlines()


def test_kubernetes_knows_every_field() -> None:
    assert validate([resource for arguments in SETS.values() for resource in render(*arguments).resources]) == []


def test_a_slip_of_the_pen_in_a_resource_is_found() -> None:
    rendered = render(*SETS["everything-on"])
    coordinator = json.loads(json.dumps(rendered.get("Deployment", "sluice-coordinator")))
    coordinator["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    monitor = json.loads(json.dumps(rendered.get("ServiceMonitor", "sluice-reward")))
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    jobs = json.loads(json.dumps(rendered.get("JobSet", "sluice-trainer")))
    jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostNetwork"] = "yes"
    found = "\n".join(validate([coordinator, monitor, jobs]))
    assert "imagePullPolcy" in found
    assert "spec.endpoints.0.intervall" in found
    assert "spec.hostNetwork: 'yes' is not of type" in found


def test_there_is_one_template_file_for_each_service() -> None:
    names = {path.name for path in (CHART / "templates").glob("*.yaml")}
    assert {f"{service}.yaml" for service in SERVICES} <= names
    for service in SERVICES:
        text = (CHART / "templates" / f"{service}.yaml").read_text(encoding="utf-8")
        assert re.search(r"^kind: (Deployment|StatefulSet)$", text, re.MULTILINE), service
        assert 'include "sluice.networkPolicy"' in text, service


def test_the_versions_are_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == project["version"]
    assert f"### {chart['version']}" in (CHART / "UPGRADING.md").read_text(encoding="utf-8")


@EVERY_SET
def test_no_container_may_do_more_than_it_must(arguments: tuple[str, ...]) -> None:
    rendered = render(*arguments)
    for _, pod in rendered.pods():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for name, container in containers(rendered):
        rules = container["securityContext"]
        assert rules["allowPrivilegeEscalation"] is False, name
        assert rules["capabilities"]["drop"] == ["ALL"], name
        # SGLang's image is made for root, and compiles kernels at its start.
        sglang = name == "rollout/engine" and "sglang" in container["image"]
        assert sglang or rules["readOnlyRootFilesystem"] is True, name


@EVERY_SET
def test_a_container_that_ends_says_why_in_the_pods_status(arguments: tuple[str, ...]) -> None:
    for name, container in containers(render(*arguments)):
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name


@EVERY_SET
def test_every_container_says_what_it_needs(arguments: tuple[str, ...]) -> None:
    for name, container in containers(render(*arguments)):
        assert container["resources"]["requests"]["memory"], name


@EVERY_SET
def test_every_service_is_asked_three_different_questions(arguments: tuple[str, ...]) -> None:
    for component, pod in render(*arguments).pods():
        for container in pod["spec"]["containers"] if component in SERVICES else ():
            probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
            assert len({json.dumps(probe, sort_keys=True) for probe in probes}) == 3, component


@EVERY_SET
def test_no_probe_takes_a_paused_engine_for_a_dead_one(arguments: tuple[str, ...]) -> None:
    """SGLang answers 503 to these while it is paused, and to /health too where that makes a token."""
    engine = render(*arguments).container("rollout", "engine")
    variables = {entry["name"]: entry.get("value") for entry in engine["env"]}
    for kind in ("readiness", "liveness"):
        assert engine[f"{kind}Probe"]["httpGet"]["path"] not in ("/health_generate", "/ready")
    if "sglang" in engine["image"]:
        assert variables["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"


@EVERY_SET
def test_a_probe_asks_only_what_the_engine_tells_without_a_key(arguments: tuple[str, ...]) -> None:
    """A probe has no key; the CPU engine opens the routes that SGLang opens, and no others."""
    engine = render(*arguments).container("rollout", "engine")
    assert "ENGINE_API_KEY" in {entry["name"] for entry in engine["env"]}
    for kind in ("startup", "readiness", "liveness"):
        assert Keys("key", "").needed_for(engine[f"{kind}Probe"]["httpGet"]["path"]) == "", kind


def test_an_engine_that_hangs_is_not_given_the_time_of_one_that_drains() -> None:
    rendered = render("--set=rollout.drainSeconds=700")
    pod, engine = rendered.pod("rollout"), rendered.container("rollout", "engine")
    assert pod["spec"]["terminationGracePeriodSeconds"] > 700
    assert engine["livenessProbe"]["terminationGracePeriodSeconds"] == 30


@EVERY_SET
def test_what_is_mounted_exists(arguments: tuple[str, ...]) -> None:
    rendered = render(*arguments)
    own = {
        (kind, r["metadata"]["name"]) for kind in ("ConfigMap", "PersistentVolumeClaim") for r in rendered.of_kind(kind)
    }
    for component, pod in rendered.pods():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        templates = {"streams"} if component == "nats" else set()
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= volumes.keys() | templates, (component, container["name"])
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in own
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == "data-of-mine" or ("PersistentVolumeClaim", claim) in own


@EVERY_SET
def test_a_service_leads_to_ports_of_its_pods(arguments: tuple[str, ...]) -> None:
    rendered = render(*arguments)
    for service in rendered.of_kind("Service"):
        pod = rendered.pod(service["spec"]["selector"]["app.kubernetes.io/component"])
        ports = {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, service["metadata"]["name"]


def test_no_secret_is_written_anywhere_but_in_the_secret() -> None:
    rendered = render_example("laptop")
    (secret,) = rendered.of_kind("Secret")
    others = json.dumps([resource for resource in rendered.resources if resource is not secret])
    assert len(secret["data"]) == 4
    assert not any(value in others for value in secret["data"].values())


def test_two_coordinators_share_the_work_and_the_verifiers_grow_with_it() -> None:
    rendered = render()
    assert rendered.get("Deployment", "sluice-coordinator")["spec"]["replicas"] == 2
    assert "replicas" not in rendered.get("Deployment", "sluice-reward")["spec"]
    scaler = rendered.get("HorizontalPodAutoscaler", "sluice-reward")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "sluice-reward"
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 16)


def test_a_pod_takes_as_many_gpus_as_it_uses() -> None:
    rendered = render_example("16-nodes-8-gpus")
    engine, trainer = rendered.container("rollout", "engine"), rendered.container("trainer")
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert "--tensor-parallel-size=4" in command_line(engine)
    assert trainer["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "--nproc-per-node=8" in command_line(trainer)
    laptop = render_example("laptop")
    assert "nvidia.com/gpu" not in json.dumps(laptop.resources)


def test_only_who_speaks_to_a_broker_trusts_the_private_authority_instead_of_the_public_ones() -> None:
    """With it alone nothing can be downloaded from a model hub; a file that is not mounted fails every connection."""
    prepared = "--set-json=assets.prepare=" + json.dumps([{"path": "model", "image": "trainer", "command": ["x"]}])
    run = "--set=run.file=x,run.trainFiles={/assets/x}"
    rendered = render(*SETS["everything-on"], prepared, run)
    trusting = set()
    for name, container in containers(rendered):
        variables = {entry["name"]: entry.get("value") for entry in container.get("env", [])}
        if "SSL_CERT_FILE" not in variables:
            continue
        trusting.add(name)
        folders = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert str(Path(str(variables["SSL_CERT_FILE"])).parent) in folders, name
    speaking = {
        name
        for name, container in containers(rendered)
        if {"SLUICE_NATS_URL", "SLUICE_REDIS_URL"} & {entry["name"] for entry in container.get("env", [])}
        and not name.endswith("/wait")  # opens a connection and closes it, before any TLS
    }
    assert {"prepare/step-0", "rollout/engine", "run/submit"} <= {name for name, _ in containers(rendered)}
    assert (
        trusting == speaking == {f"{name}/{name}" for name in ("coordinator", "reward", "rollout", "trainer", "smoke")}
    )


def test_trainers_on_the_network_of_their_nodes_reach_nats_by_address() -> None:
    ports = render(*SETS["everything-on"]).get("NetworkPolicy", "sluice-nats")["spec"]["ingress"]
    (clients,) = (rule for rule in ports if rule["ports"][0]["port"] == 4222)
    assert {"ipBlock": {"cidr": "10.1.0.0/16"}} in clients["from"]
    render("--set=trainer.hostNetwork=true,networkPolicy.enabled=false")  # nothing to open


@pytest.mark.parametrize("kind", ["StatefulSet", "JobSet", "LeaderWorkerSet"])
def test_a_node_can_be_drained_whatever_makes_the_trainers_pods(kind: str) -> None:
    """A Job does not say how many pods it should have, so a budget of its pods never lets one go."""
    rendered = render(f"--set=trainer.kind={kind},trainer.nodes=2")
    budgets = {budget["metadata"]["name"]: budget["spec"] for budget in rendered.of_kind("PodDisruptionBudget")}
    assert ("sluice-trainer" in budgets) == (kind != "JobSet")
    assert {"sluice-coordinator", "sluice-reward", "sluice-rollout", "sluice-nats"} <= budgets.keys()
    assert {spec["unhealthyPodEvictionPolicy"] for spec in budgets.values()} == {"AlwaysAllow"}
