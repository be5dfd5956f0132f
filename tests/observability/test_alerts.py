"""Alert rules are valid, fire when they should, are silent when they should be, and lead to the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.local.ports import LOOPBACK, free_ports
from tests.docs.pages import anchors
from tests.observability.prometheus import (
    DEPLOYED,
    ROOT,
    Prometheus,
    known_metrics,
    metrics_in,
    program,
    rules,
)

ALERTS: list[dict[str, Any]] = [rule for rule in rules() if "alert" in rule]
NAMES = sorted({alert["alert"] for alert in ALERTS})
TESTS = sorted((DEPLOYED / "tests").glob("*.yml"))
ALERTMANAGER = DEPLOYED.parent / "alertmanager" / "alertmanager.yml"


def run(tool: str, *arguments: str | Path) -> None:
    done = subprocess.run([program(tool), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    run("promtool", "check", "config", DEPLOYED / "prometheus.yml")


def test_alertmanager_accepts_its_configuration() -> None:
    run("amtool", "check-config", ALERTMANAGER)


@pytest.mark.parametrize("severity", ["warning", "critical"])
def test_every_severity_is_routed_to_people(severity: str) -> None:
    route = ["config", "routes", "test", f"--config.file={ALERTMANAGER}", "--verify.receivers=people"]
    run("amtool", *route, f"severity={severity}", "alertname=SluiceNoBatch")


def test_alerts_fire_and_are_silent_as_their_unit_tests_say() -> None:
    run("promtool", "test", "rules", *TESTS)


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_is_shown_to_fire_and_to_be_silent(name: str) -> None:
    cases = [
        case["exp_alerts"]
        for file in TESTS
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    shown = {alert["exp_labels"]["severity"] for case in cases for alert in case}
    assert shown == {alert["labels"]["severity"] for alert in ALERTS if alert["alert"] == name}
    assert any(not case for case in cases)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
def test_an_alert_has_a_severity_a_summary_with_values_and_an_entry_in_the_runbook(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert "{{" in alert["annotations"]["summary"] or "absent(" in alert["expr"]
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    assert anchor in anchors(ROOT / page)


def test_the_runbook_has_an_entry_for_each_alert_that_says_what_it_means_how_to_look_and_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    entries = re.findall(r"^### (Sluice\w+)\n(.*?)(?=^##)", page + "\n##", re.MULTILINE | re.DOTALL)
    assert sorted(name for name, _ in entries) == NAMES
    for name, text in entries:
        assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == ["Means.", "Look.", "Do."], name


def test_every_metric_of_the_rules_is_one_that_a_service_has() -> None:
    unknown = {name for rule in rules() for name in metrics_in(rule["expr"])} - known_metrics()
    assert unknown == set()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert", rule.get("record")))
def test_a_rule_keeps_the_installations_of_a_cluster_apart(rule: dict[str, Any]) -> None:
    assert re.findall(r"\b(?:sum|max|min|count|avg)\b(?! by \(namespace\b)", rule["expr"]) == []
    assert re.findall(r"\bon \((?!namespace\b)", rule["expr"]) == []
    looked_up = re.findall(r"max\(\w+\{([^}]*)\}", rule.get("annotations", {}).get("summary", ""))
    assert all(matchers.startswith("namespace=%q, run=%q") for matchers in looked_up)


def test_a_service_that_does_not_answer_raises_its_alert_in_a_real_prometheus(tmp_path: Path) -> None:
    """The deployed configuration and rules, but without the minutes that an alert must last."""
    impatient = tmp_path / "rules"
    shutil.copytree(DEPLOYED / "rules", impatient)
    for file in impatient.glob("*.yml"):
        file.write_text(re.sub(r"for: \d+m", "for: 0s", file.read_text(encoding="utf-8")), encoding="utf-8")
    nobody = f"{LOOPBACK}:{free_ports(1)[0]}"
    with Prometheus(tmp_path, {"reward": [nobody]}, scrape_seconds=0.2, rules=impatient) as prometheus:
        alert = firing(prometheus, "SluiceTargetDown")
    assert alert["annotations"]["summary"] == f"{nobody} of sluice-reward does not answer Prometheus."


def firing(prometheus: Prometheus, name: str, seconds: float = 20) -> dict[str, Any]:
    """The alert of that name, once it fires."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for alert in prometheus.alerts():
            if (alert["labels"]["alertname"], alert["state"]) == (name, "firing"):
                return alert
        time.sleep(0.1)
    raise TimeoutError(f"{name} does not fire within {seconds} s")
