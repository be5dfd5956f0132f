"""What the documentation says is measured is measured, by the service that it names, in a real run."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.coordinator.bottleneck import Part
from tests.observability.conftest import ShortRun
from tests.observability.short_run import ROOT, SLUICE, wait_until

PROCESSES = {
    "coordinator": "coordinator",
    "rollout": "rollout-0",
    "engine": "engine-0",
    "reward": "reward-0",
    "trainer": "trainer-0",
}
OF_EVERY_PROCESS = ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds")
NOT_BASE_UNITS = re.compile(r"_(ms|milliseconds|us|ns|minutes|hours|kb|mb|gb|kib|mib|gib|percent|percentage)(_|$)")
ON_DEMAND = {"sluice_reward_agreement_total": "counted when SLUICE_REWARD_SECOND names a second verifier"}
"""Metrics of what a plain run does not use."""
MOST_VALUES = 40
"""A label with more values than this in a short run has no bound."""


@pytest.fixture(autouse=True)
def scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def families(text: str) -> dict[str, Metric]:
    """By the name that the documentation uses; a family without a sample is not there, nor is when one was created."""
    found = (family for family in text_string_to_metric_families(text) if family.samples)
    named = {family.name + ("_total" if family.type == "counter" else ""): family for family in found}
    return {name: family for name, family in named.items() if not name.endswith("_created")}


@pytest.mark.parametrize("service", PROCESSES)
def test_every_documented_metric_is_there_in_a_real_run_with_its_type_and_labels(
    service: str, short_run: ShortRun
) -> None:
    from documentation.deployment import metrics_of

    served = families(short_run.scraped[PROCESSES[service]])
    for metric in metrics_of(service):
        assert (metric.name in served) == (metric.name not in ON_DEMAND), f"{metric.name} of {service}"
        if metric.name in ON_DEMAND:
            continue
        family = served[metric.name]
        assert family.type == metric.kind, metric.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == set(metric.labels), metric.name


@pytest.mark.parametrize("service", PROCESSES)
def test_no_metric_is_served_that_the_documentation_does_not_have(service: str, short_run: ShortRun) -> None:
    from documentation.deployment import metrics_of

    served = {name for name in families(short_run.scraped[PROCESSES[service]]) if re.match("sluice_|sglang:", name)}
    assert served - {metric.name for metric in metrics_of(service)} == set()


@pytest.mark.parametrize("service", PROCESSES)
def test_names_follow_the_rules_and_labels_have_few_values(service: str, short_run: ShortRun) -> None:
    for name, family in families(short_run.scraped[PROCESSES[service]]).items():
        if name.startswith(("sluice_", "sglang:")):
            assert (family.type == "counter") == name.endswith("_total"), name
            assert not NOT_BASE_UNITS.search(name), name
            for label in {label for sample in family.samples for label in sample.labels} - {"le"}:
                assert len({sample.labels.get(label) for sample in family.samples}) <= MOST_VALUES, (name, label)


@pytest.mark.parametrize("process", PROCESSES.values())
def test_every_process_tells_its_memory_its_processor_time_and_since_when_it_lives(
    process: str, short_run: ShortRun
) -> None:
    assert set(OF_EVERY_PROCESS) <= set(families(short_run.scraped[process]))


@pytest.mark.parametrize("process", ["coordinator", "rollout-0", "trainer-0"])
def test_what_belongs_to_a_run_says_which(process: str, short_run: ShortRun) -> None:
    samples = [s for family in families(short_run.scraped[process]).values() for s in family.samples]
    named = {sample.labels["run"] for sample in samples if "run" in sample.labels}
    assert named in ({short_run.run_id}, {short_run.run_id, ""})  # empty: a wait before there was a run


def test_a_run_says_who_waits_for_whom_in_its_status_in_a_metric_and_at_the_terminal(short_run: ShortRun) -> None:
    found = short_run.status.bottleneck
    assert found is not None
    assert found.part in set(Part)
    assert found.text
    assert found.window_seconds >= 5
    served = families(short_run.scraped["coordinator"])
    flags = {sample.labels["part"]: sample.value for sample in served["sluice_bottleneck"].samples}
    assert set(flags) == set(Part)
    assert sorted(flags.values()) == [0.0] * (len(Part) - 1) + [1.0]
    shares = {sample.labels["share"]: sample.value for sample in served["sluice_bottleneck_share"].samples}
    assert set(shares) == set(found.shares)
    assert all(0 <= share <= 1 for share in shares.values())
    with short_run.train():
        assert "bottleneck: " in watch_until(short_run, "bottleneck: ")


def watch_until(run: ShortRun, text: str) -> str:
    """The first line of `sluice watch` that has `text`."""
    command = [*SLUICE, "watch", run.run_id, "--at", run.api_url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watching:
        assert watching.stdout is not None
        line = next((line for line in watching.stdout if text in line), "")
        watching.send_signal(signal.SIGINT)
    return line


def test_a_paused_run_has_no_verdict_and_no_wait(short_run: ShortRun) -> None:
    assert short_run.see().state == "paused"
    wait_until(lambda: not short_run.see().waits, short_run.see, seconds=10)  # status is a second old at most
    assert short_run.see().bottleneck is None
