"""How old the policy was that sampled what was trained, and whether that version had ever been published."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sluice.audit.findings import Fault, Finding
from sluice.audit.ledger import Books
from sluice.audit.lineages import Weights
from sluice.wire.v1.ledger_pb2 import Batch, BatchGroup
from sluice.wire.v1.rollouts_pb2 import PolicyVersion


@dataclass(slots=True)
class Staleness:
    """Rollouts by staleness: batch index minus the number of the oldest token's version."""

    histogram: Counter[int] = field(default_factory=Counter)
    violations: int = 0
    findings: list[Finding] = field(default_factory=list)


def measure_staleness(books: Books, weights: Weights) -> Staleness:
    staleness = Staleness()
    for batch in books.batches:
        if batch.version > max(weights.highest, weights.first_step):
            staleness.findings.append(
                Finding(Fault.VERSION, f"batch {batch.k} knows version {batch.version}, {weights.highest} is published")
            )
        for entry in batch.groups:
            _measure_group(staleness, batch, entry, books.rules.max_staleness)
            staleness.findings += _check_versions(batch.k, entry, weights)
    return staleness


def _measure_group(staleness: Staleness, batch: Batch, entry: BatchGroup, bound: int) -> None:
    ages = [batch.k - rollout.oldest_version.number for rollout in entry.rollouts]
    staleness.histogram.update(ages)
    if stale := sum(age > bound for age in ages):
        staleness.violations += stale
        staleness.findings.append(
            Finding(
                Fault.STALE,
                f"group {entry.n} of batch {batch.k}: {stale} rollouts up to {max(ages)} versions old, "
                f"max_staleness is {bound}",
            )
        )


def _check_versions(k: int, entry: BatchGroup, weights: Weights) -> list[Finding]:
    findings = []
    for i, rollout in enumerate(entry.rollouts):
        oldest, newest = rollout.oldest_version, rollout.newest_version
        name = f"rollout {i} of group {entry.n} in batch {k}"
        for version in (oldest, newest):
            if (version.number, version.lineage) not in weights.published:
                findings.append(Finding(Fault.VERSION, f"{name} names {_name(version)}, which was never published"))
        if oldest.number < entry.version:
            detail = f"{name} was sampled from {_name(oldest)}, its prompt asked for version {entry.version}"
            findings.append(Finding(Fault.VERSION, detail))
        if not oldest.number <= newest.number <= k:
            detail = f"{name} goes from {_name(oldest)} to {_name(newest)}"
            findings.append(Finding(Fault.VERSION, detail))
    return findings


def _name(version: PolicyVersion) -> str:
    return f"v{version.number}.{version.lineage}"
