"""The dashboards are what the code says, are well formed, and each of their queries finds data in a real short run."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from sluice.config import RunSpec
from tests.observability.conftest import ShortRun
from tests.observability.prometheus import ROOT, Prometheus, Variables, dashboards, known_metrics, metrics_in, rules
from tests.observability.short_run import wait_until

DASHBOARDS = dashboards()
QUERIES = [
    (f"{dashboard.uid}: {panel.title}", query.expr)
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for query in panel.queries
]
SCRAPE_SECONDS = 1.0
STEPS = 5
"""Training steps that Prometheus sees: enough for every rate."""


def test_the_files_are_what_the_code_says() -> None:
    command = [sys.executable, "scripts/dashboards.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_there_are_four_dashboards_and_the_first_panels_say_who_waits_for_whom() -> None:
    titles = {dashboard.uid: [panel.title for panel in dashboard.panels] for dashboard in DASHBOARDS}
    assert sorted(titles) == ["sluice-rollouts", "sluice-sampling", "sluice-services", "sluice-training"]
    assert titles["sluice-training"][:2] == ["Who waits for whom", "Held back by"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_panels_have_their_own_numbers_and_places(dashboard: Any) -> None:
    numbers = [panel.fields["id"] for panel in dashboard.panels]
    assert len(numbers) == len(set(numbers))
    for one, other in itertools.combinations(dashboard.panels, 2):
        assert not overlap(one.box, other.box), f"{one.title} and {other.title}"
    assert all(left + width <= 24 for left, _, width, _ in (panel.box for panel in dashboard.panels))


def overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    (x1, y1, w1, h1), (x2, y2, w2, h2) = one, other
    return x1 < x2 + w2 and x2 < x1 + w1 and y1 < y2 + h2 and y2 < y1 + h1


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_has_one_data_source_and_lets_people_choose_runs(dashboard: Any) -> None:
    variables = {variable["name"]: variable for variable in dashboard.fields["templating"]["list"]}
    sources = [name for name, variable in variables.items() if variable["type"] == "datasource"]
    assert sources == ["datasource"]
    chosen = 'label_values(sluice_groups_issued_total{namespace=~"$namespace"}, run)'
    assert variables["run"]["query"]["query"] == chosen
    used = {source["uid"] for source in find(dashboard.fields, "datasource") if isinstance(source, dict)}
    assert used == {"${datasource}"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_lets_people_choose_an_installation_and_shows_all_where_there_are_no_namespaces(
    dashboard: Any,
) -> None:
    variables = {variable["name"]: variable for variable in dashboard.fields["templating"]["list"]}
    assert list(variables).index("namespace") < list(variables).index("run")
    assert variables["namespace"]["allValue"] == ".*"


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_the_query_of_a_panel_is_about_the_chosen_installations_and_does_not_mix_them(panel: str, expr: str) -> None:
    assert 'namespace=~"$namespace"' in expr, panel
    groupings = re.findall(r"\bby \((\w+)", expr)
    assert set(groupings) <= {"namespace", "le"}, panel
    assert not re.search(r"\b(?:sum|max|min|count|avg)\b(?! by \()", expr), panel


def test_a_timeline_of_states_colours_only_what_holds() -> None:
    timelines = [p for dashboard in DASHBOARDS for p in dashboard.panels if p.kind == "state-timeline"]
    assert timelines
    for panel in timelines:
        (mapping,) = panel.fields["fieldConfig"]["defaults"]["mappings"]
        assert mapping["options"]["0"]["color"] == "transparent"
        assert mapping["options"]["1"]["color"] not in ("transparent", None)


def test_what_holds_a_run_back_is_shown_with_the_run() -> None:
    legends = [query.legend for d in DASHBOARDS for p in d.panels for query in p.queries if "bottleneck" in query.expr]
    assert legends
    assert all("{{run}}" in legend for legend in legends)


def find(fields: Any, key: str) -> Iterator[Any]:
    """Every value under `key`, however deep."""
    if isinstance(fields, dict):
        yield from (value for name, value in fields.items() if name == key)
        for value in fields.values():
            yield from find(value, key)
    elif isinstance(fields, list):
        for value in fields:
            yield from find(value, key)


def test_every_panel_says_how_to_read_it() -> None:
    panels = [panel for dashboard in DASHBOARDS for panel in dashboard.panels if panel.kind != "row"]
    assert [panel.title for panel in panels if not panel.fields.get("description")] == []
    assert [panel.title for panel in panels if panel.kind != "text" and not panel.queries] == []


def test_a_dashed_line_is_where_an_alert_begins() -> None:
    limits = [panel.limit for dashboard in DASHBOARDS for panel in dashboard.panels if panel.limit not in (None, 1)]
    compared = {float(number) for rule in rules() for number in re.findall(r"[<>] (0\.\d+)", rule["expr"])}
    assert len(limits) == 5
    assert set(limits) <= compared


def test_every_metric_of_the_dashboards_is_one_that_a_service_has() -> None:
    named = {name for _, expr in QUERIES for name in metrics_in(expr)}
    assert named - known_metrics() == set()


@dataclass(frozen=True, slots=True)
class Watched:
    """What a Prometheus has scraped of the short run while it trained."""

    prometheus: Prometheus
    variables: Variables
    began: float
    ended: float

    def values(self, expr: str) -> list[float]:
        """All that a panel's query gives over that time."""
        filled = self.variables.fill(expr)
        found = self.prometheus.query_range(filled, self.began, self.ended, SCRAPE_SECONDS)
        return [value for series in found for _, value in series.points if not math.isnan(value)]


@pytest.fixture(scope="module")
def watched(short_run: ShortRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    targets: dict[str, list[str]] = {}
    for name, url in short_run.targets.items():
        targets.setdefault(name.split("-")[0], []).append(urlsplit(url).netloc)
    variables = Variables(run=short_run.run_id, rate_interval="5s", window="30s")
    steps = f'changes(sluice_trainer_policy_version{{run="{short_run.run_id}"}}[5m]) >= {STEPS}'
    with Prometheus(tmp_path_factory.mktemp("prometheus"), targets, SCRAPE_SECONDS) as server:
        began = time.time()
        with short_run.train():
            wait_until(lambda: bool(server.query(steps)), lambda: server.query("sluice_trainer_policy_version"))
        yield Watched(server, variables, began, time.time())


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_the_query_of_a_panel_finds_data(panel: str, expr: str, watched: Watched) -> None:
    assert watched.values(expr), panel


def test_a_query_with_a_typing_error_finds_nothing(watched: Watched) -> None:
    assert watched.values('sluice_reward_mean{run=~"$run"}')
    assert watched.values('sluice_reward_maen{run=~"$run"}') == []
    assert watched.values('sluice_reward_mean{rum=~"$run"}') == []


def test_a_healthy_run_raises_no_alert(watched: Watched) -> None:
    assert watched.values("up")
    assert watched.values('ALERTS{alertstate="firing"}') == []


def test_every_field_that_a_panel_advises_to_change_is_a_field_of_the_run_file() -> None:
    sections = {name: field.annotation for name, field in RunSpec.model_fields.items()}
    known = {f"{name}.{key}" for name, section in sections.items() for key in getattr(section, "model_fields", {})}
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", json.dumps([dashboard.fields for dashboard in DASHBOARDS])))
    assert len(named) > 5
    assert named - known == set()
