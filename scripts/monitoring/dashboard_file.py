"""Reads the dashboards' JSON as Grafana would: panels, where they lie, and their queries with variables filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitoring.prometheus import ROOT

FOLDER = ROOT / "deploy" / "observability" / "grafana" / "dashboards"


@dataclass(frozen=True, slots=True)
class Variables:
    """Values for what a dashboard leaves open."""

    run: str
    """A regular expression."""
    rate_interval: str
    window: str
    namespace: str = ".*"

    def fill(self, expr: str) -> str:
        """`expr` as Prometheus gets it."""
        values = {
            "$namespace": self.namespace,
            "$run": self.run,
            "$__rate_interval": self.rate_interval,
            "$window": self.window,
        }
        for name, value in values.items():
            expr = expr.replace(name, value)
        return expr


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel, and how its series are named."""

    expr: str
    legend: str

    def name(self, labels: dict[str, str]) -> str:
        """The name of a series with these labels."""
        return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), self.legend).strip()


@dataclass(frozen=True, slots=True)
class PanelOnFile:
    """One panel of a dashboard; `fields` is all of its JSON."""

    title: str
    kind: str
    queries: tuple[Query, ...]
    fields: dict[str, Any]

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, width and height on Grafana's grid."""
        grid = self.fields["gridPos"]
        return grid["x"], grid["y"], grid["w"], grid["h"]

    @property
    def unit(self) -> str:
        return str(self.fields.get("fieldConfig", {}).get("defaults", {}).get("unit", "short"))

    @property
    def limit(self) -> float | None:
        """Where an alert begins."""
        steps = self.fields.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
        return steps[-1]["value"] if steps else None

    @property
    def stacked(self) -> bool:
        custom = self.fields.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
        return bool(custom.get("stacking", {}).get("mode") == "normal")


@dataclass(frozen=True, slots=True)
class DashboardOnFile:
    """One dashboard; `panels` in their order, headings included."""

    uid: str
    title: str
    panels: tuple[PanelOnFile, ...]
    fields: dict[str, Any]


def dashboards() -> list[DashboardOnFile]:
    """All dashboards of the project."""
    return [_dashboard(file) for file in sorted(FOLDER.glob("*.json"))]


def _dashboard(file: Path) -> DashboardOnFile:
    fields = json.loads(file.read_text(encoding="utf-8"))
    return DashboardOnFile(fields["uid"], fields["title"], tuple(_panels(fields["panels"])), fields)


def _panels(panels: list[dict[str, Any]]) -> Iterator[PanelOnFile]:
    for panel in panels:
        queries = tuple(Query(t["expr"], t["legendFormat"]) for t in panel.get("targets", []))
        yield PanelOnFile(panel["title"], panel["type"], queries, panel)
