"""Values of the Helm chart: which ones it refuses, and with what line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.charts import CHART, EVERY_SET, HelmError, containers, render, run_helm


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("trainer.device=gpu", "'/trainer/device': value must be one of 'cuda', 'cpu'"),
        ("trainer.nodse=3", "'/trainer': additional properties 'nodse' not allowed"),
        ("nats.replicas=2", "'/nats/replicas': value must be one of 1, 3, 5"),
        ("reward.workers=none", "'/reward/workers': got string, want integer"),
        ("run.modelPath=models/tiny", "'/run/modelPath': 'models/tiny' does not match pattern"),
        ("rollout.engine.resources.limits.memory=12GB", "'12GB' does not match pattern"),
        ("data.accessModes={ReadWriteOnce}", "run.weightsTransport=shared: trainer and engines share the claim"),
        ("trainer.nodes=2,data.accessModes={ReadWriteOnce}", "trainer.nodes=2: all of them write checkpoints"),
        ("nats.rolloutsGiB=100", "of which streams get 95 %, cannot hold nats.rolloutsGiB=100"),
        ("nats.groupsGiB=50", "cannot hold nats.rolloutsGiB=8, nats.groupsGiB=50 and 3 GiB for the other streams"),
        ("nats.enabled=false", "name a Secret with the URL of your own NATS in nats.external.urlSecret"),
        ("nats.tls.secret=x", "the authority that signed it in tls.caSecret"),
        ("rollout.autoscaling.enabled=true", "set rollout.autoscaling.prometheusAddress"),
        (
            "rollout.autoscaling.enabled=true,rollout.autoscaling.prometheusAddress=http://p,rollout.maxGroupsInFlight=10",
            "groupsPerWorker=48 is above rollout.maxGroupsInFlight=10",
        ),
        (
            "rollout.autoscaling.enabled=true,rollout.autoscaling.prometheusAddress=http://p,rollout.autoscaling.minReplicas=9",
            "rollout.autoscaling.minReplicas=9 is above maxReplicas=8",
        ),
        ("reward.autoscaling.minReplicas=17", "reward.autoscaling.minReplicas=17 is above maxReplicas=16"),
        ("nats.storage.sizeGiB=12", "nats.storage.sizeGiB=12, of which streams get 95 %, cannot hold"),
        ("fullnameOverride=9sluice", 'would begin with "9sluice", and a Service\'s must begin with a letter'),
        (f"nameOverride={'n' * 64}", "'/nameOverride': maxLength: got 64, want 63"),
        (f"trainer.kind=JobSet,fullnameOverride={'n' * 40}", "of 64 characters, and 63 are the limit"),
        ("monitoring.runbookBase=docs", "'/monitoring/runbookBase': 'docs' does not match pattern"),
        ("run.file=x", "say in run.trainFiles where the coordinator sees the training files"),
        ("coordinator.ingress.enabled=true", "set coordinator.ingress.host"),
        ("trainer.hostNetwork=true", "name the nodes' addresses in networkPolicy.trainerFrom"),
    ],
)
def test_a_wrong_value_is_refused_with_a_line_that_names_it(setting: str, says: str) -> None:
    with pytest.raises(HelmError) as refused:
        run_helm("template", "sluice", str(CHART), "--set", setting)
    assert says in str(refused.value)


def test_the_values_file_shows_every_value_that_the_schema_knows() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def names(node: Any, shown: Any, path: str) -> set[str]:
        found = set()
        for name, child in node.get("properties", {}).items():
            found.add(f"{path}{name}")
            found |= names(child, (shown or {}).get(name, {}), f"{path}{name}.")
        return found

    def keys(shown: Any, path: str, known: set[str]) -> set[str]:
        found = set()
        for name, child in shown.items() if isinstance(shown, dict) else ():
            if path == "" or f"{path}{name}" in known:
                found |= {f"{path}{name}"} | keys(child, f"{path}{name}.", known)
        return found

    known = names(schema, values, "") - {"global"}
    assert keys(values, "", known) == known


def test_what_only_autoscaling_needs_is_not_asked_of_others() -> None:
    render("--set=rollout.maxGroupsInFlight=32")
    render("--set=reward.autoscaling.enabled=false,reward.autoscaling.minReplicas=17")


@pytest.mark.parametrize("naming", ["fullnameOverride=sluice-0.1", f"fullnameOverride={'n' * 60}"])
def test_every_name_is_one_that_kubernetes_takes(naming: str) -> None:
    for resource in render("--set", naming).resources:
        name = resource["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name), name


@EVERY_SET
def test_no_variable_is_given_twice(arguments: tuple[str, ...]) -> None:
    for name, container in containers(render(*arguments)):
        names = [entry["name"] for entry in container.get("env", [])]
        assert len(names) == len(set(names)), name


@pytest.mark.parametrize("service", ["coordinator", "reward", "rollout", "rollout.engine", "trainer"])
def test_a_variable_that_comes_from_a_secret_is_not_given_a_second_time(service: str) -> None:
    made = dict(containers(render("--set=reward.cacheUrlSecret=verdicts")))
    container = made["rollout/engine" if service == "rollout.engine" else f"{service}/{service}"]
    taken = [e["name"] for e in container["env"] if "valueFrom" in e or "$(" in e["value"]]
    assert taken
    for name in taken:
        with pytest.raises(HelmError, match=rf"{service}\.env\.{name}: the chart sets this one"):
            render("--set-string", f"{service}.env.{name}=mine")
