"""What the Helm chart gives a Prometheus: whom to ask, by which name, and what to alert on."""

from __future__ import annotations

import re

import yaml

from tests.deploy.charts import ROOT, SETS, render


def test_dashboards_and_alert_rules_are_those_of_the_compose_stack() -> None:
    rendered, folder = render(*SETS["everything-on"]), ROOT / "deploy" / "observability"
    texts = {name: text for resource in rendered.of_kind("ConfigMap") for name, text in resource["data"].items()}
    files = [*(folder / "grafana" / "dashboards").glob("*.json"), *(folder / "prometheus" / "rules").glob("*.yml")]
    assert files
    for file in files:
        assert texts[file.name] == file.read_text(encoding="utf-8"), file
    for file in folder.glob("prometheus/rules/*.yml"):
        rule = rendered.get("PrometheusRule", f"sluice-{file.stem}")
        assert rule["spec"] == yaml.safe_load(file.read_text(encoding="utf-8"))


def test_alerts_link_to_their_runbook_where_the_pages_can_be_read() -> None:
    base = "--set=monitoring.runbookBase=https://git.example/sluice/blob/main/"
    rendered = render(*SETS["everything-on"], base)
    rules = [
        rule
        for made in rendered.of_kind("PrometheusRule")
        for group in made["spec"]["groups"]
        for rule in group["rules"]
    ]
    links = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert links
    assert all(link.startswith("https://git.example/sluice/blob/main/docs/operations.md#") for link in links)
    text = rendered.get("ConfigMap", "sluice-rules")["data"]["training.yml"]
    assert text.count("runbook_url: https://git.example/") == text.count("runbook_url:") > 0


def test_an_engine_that_still_loads_is_not_a_target_that_is_down() -> None:
    """Prometheus finds pods that are not ready, too, by one of two labels."""
    for monitor in render(*SETS["everything-on"]).of_kind("ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            (drop,) = (rule for rule in endpoint["relabelings"] if rule["action"] == "drop")
            assert len(drop["sourceLabels"]) == 2
            assert all(re.fullmatch(drop["regex"], found) for found in ("false;", ";false"))
            assert not any(re.fullmatch(drop["regex"], found) for found in ("true;", ";true", ";"))


def test_only_the_monitoring_namespace_reaches_the_ports_of_metrics() -> None:
    """Two of them are ports of an API as well."""
    everybody: dict[str, dict[str, str]] = {"namespaceSelector": {}}
    policies = render().of_kind("NetworkPolicy")
    assert policies
    assert not any(everybody in rule["from"] for policy in policies for rule in policy["spec"]["ingress"])
