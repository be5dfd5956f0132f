"""The outcome of an audit: counts, histogram and findings, for machines and for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from sluice.audit.findings import Fault, Finding

SHOWN_FINDINGS = 40


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Always: issued = trained + awaiting_training + Σ dropped + live. Counts are groups unless a name says else."""

    run_id: str
    state: str = "unknown"
    issued: int = 0
    live: int = 0
    """Issued and not settled: in flight, or kept and waiting for a batch."""
    in_flight: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    """Kept so far, whether in a batch or waiting for one."""
    trained: int = 0
    """In the newest weights exactly once, by the hash chain."""
    awaiting_training: int = 0
    """In a batch that the newest weights do not have yet."""
    trained_twice: int = 0
    lost: int = 0
    max_staleness: int = 0
    staleness_histogram: dict[int, int] = field(default_factory=dict)
    """Staleness -> rollouts in batches."""
    staleness_violations: int = 0
    """Rollouts."""
    capacity_violations: int = 0
    """ISSUE records."""
    batches: int = 0
    training_steps: int = 0
    lineages: int = 0
    newest_checkpoint: int = 0
    checkpoints_verified: int = 0
    checkpoints_elsewhere: int = 0
    """Recorded checkpoints whose folder cannot be seen from here: removed as old, or on another machine."""
    rollouts_verified: int = 0
    rollouts_purged: int = 0
    rollouts_orphaned: int = 0
    groups_with_several_attempts: int = 0
    late_groups: int = 0
    unreadable_groups: int = 0
    """Stored, and dropped as `failed` because the coordinator cannot read them, or yet to be."""
    response_length: dict[str, float | None] = field(default_factory=dict)
    """Mean tokens of `kept` and of `dropped` groups (those still stored): the bias of the filter."""
    findings: tuple[Finding, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Plain values; histogram keys become strings in JSON text."""
        return asdict(self) | {
            "findings": [{"kind": str(f.kind), "detail": f.detail} for f in self.findings],
            "clean": self.clean,
        }

    def count(self, kind: Fault) -> int:
        return sum(finding.kind is kind for finding in self.findings)


def print_json(report: AuditReport) -> None:
    print(json.dumps(report.to_json(), indent=2))


def print_report(report: AuditReport, console: Console) -> None:
    """A table, the findings, and one line of verdict."""
    table = Table(title=f"audit of {report.run_id} ({report.state})", show_header=False, title_justify="left")
    for name, value in _lines(report):
        table.add_row(name, value)
    console.print(table)
    for finding in report.findings[:SHOWN_FINDINGS]:
        console.print(f"{finding.kind}: {finding.detail}", markup=False, highlight=False, soft_wrap=True)
    if (rest := len(report.findings) - SHOWN_FINDINGS) > 0:
        console.print(f"and {rest} more findings; --json lists them all", highlight=False)
    console.print(verdict(report), markup=False, highlight=False, soft_wrap=True)


def verdict(report: AuditReport) -> str:
    if report.clean:
        return (
            f"CLEAN: {report.issued} issued = {report.trained} trained once + {report.awaiting_training} awaiting + "
            f"{sum(report.dropped.values())} dropped + {report.live} live; "
            f"0 lost, 0 trained twice, staleness within {report.max_staleness}"
        )
    kinds = sorted({str(finding.kind) for finding in report.findings})
    return f"BROKEN: {len(report.findings)} findings ({', '.join(kinds)})"


def _lines(report: AuditReport) -> list[tuple[str, str]]:
    histogram = " ".join(f"{age}:{count}" for age, count in sorted(report.staleness_histogram.items()))
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(report.dropped.items()))
    lengths = ", ".join(f"{name} {value:.1f}" for name, value in report.response_length.items() if value is not None)
    return [
        ("issued", str(report.issued)),
        ("trained exactly once", str(report.trained)),
        ("awaiting training", str(report.awaiting_training)),
        ("dropped", reasons or "0"),
        ("live (in flight)", f"{report.live} ({report.in_flight})"),
        ("trained twice", str(report.trained_twice)),
        ("lost", str(report.lost)),
        ("staleness (rollouts)", histogram or "none trained"),
        (f"staleness above {report.max_staleness}", str(report.staleness_violations)),
        ("capacity violations", str(report.capacity_violations)),
        ("batches, steps trained", f"{report.batches}, {report.training_steps}"),
        ("trainer lineages", str(report.lineages)),
        ("checkpoints verified", f"{report.checkpoints_verified}, newest {report.newest_checkpoint}"),
        ("checkpoints not here", str(report.checkpoints_elsewhere)),
        ("rollouts verified", str(report.rollouts_verified)),
        ("rollouts purged, orphaned", f"{report.rollouts_purged}, {report.rollouts_orphaned}"),
        ("several attempts, late groups", f"{report.groups_with_several_attempts}, {report.late_groups}"),
        ("unreadable groups", str(report.unreadable_groups)),
        ("mean response length", lengths or "unknown"),
    ]
