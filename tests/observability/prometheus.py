"""What tests of dashboards and alerts share: the project's scripts for Prometheus, and the names of all metrics."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))  # scripts import one another as seen from their own folder

from monitoring.dashboard_file import Variables, dashboards  # noqa: E402
from monitoring.prometheus import DEPLOYED, Prometheus, program  # noqa: E402

__all__ = ["DEPLOYED", "ROOT", "Prometheus", "Variables", "dashboards", "program"]

NAMES = re.compile(r"\b(?:sluice_|sglang:|sluice:|process_)[a-z0-9_:]+")
PROCESS = {"process_resident_memory_bytes", "process_start_time_seconds"}
"""Of prometheus_client's process collector, which every service serves."""


def metrics_in(expr: str) -> set[str]:
    """Names of Sluice's, the engine's and the processes' metrics in an expression; a histogram's parts as itself."""
    return {_family(name) for name in NAMES.findall(expr)}


def _family(name: str) -> str:
    parts = re.fullmatch(r"(.+)_(?:bucket|sum|count)", name)
    return parts[1] if parts and parts[1] in known_metrics() else name


@functools.cache
def known_metrics() -> frozenset[str]:
    """Every metric that the rules record or that a service declares: docs/metrics.md has them all, by its test."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = page.split("<!-- begin generated metrics -->")[1].split("<!-- end generated metrics -->")[0]
    declared = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    return frozenset({*declared, *PROCESS, *(rule["record"] for rule in rules() if "record" in rule)})


def rules() -> list[dict[str, str]]:
    """Every rule, of alerts and of recordings."""
    files = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted((DEPLOYED / "rules").glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]
