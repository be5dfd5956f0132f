"""`audit`: read what a run has stored, count it again, say what does not fit."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from sluice.audit.capacity import check_capacity
from sluice.audit.checkpoints import CheckpointFolders
from sluice.audit.findings import Fault, Finding
from sluice.audit.groups import (
    StoredGroups,
    check_groups,
    check_order,
    check_unsettled,
    mean_lengths,
    settle_by_outcome,
)
from sluice.audit.ledger import Books, keep_books
from sluice.audit.lineages import Weights, follow_weights, purged_floors
from sluice.audit.reading import Snapshot, read_rollouts, read_snapshot
from sluice.audit.report import AuditReport
from sluice.audit.rollouts import RolloutCheck, Scored
from sluice.audit.staleness import Staleness, measure_staleness
from sluice.errors import ConfigError, TransientError
from sluice.transport.nats import Bus

PASSES = 4
CONNECT_SECONDS = 5.0


async def audit(bus: Bus | str, run_id: str) -> AuditReport:
    """Audit a live or an ended run over a connection, or over the server at a URL.

    A live run moves while it is read, and what was purged between two reads looks lost. So a run that moved during an
    audit with findings is audited again, and only findings that come back are reported.

    Raises:
        ConfigError: no server answers, or it has no such run.
    """
    if isinstance(bus, str):
        connection = await _connect(bus)
        try:
            return await audit(connection, run_id)
        finally:
            await connection.close()
    report, position = await _audit_once(bus, run_id)
    for _ in range(PASSES - 1):
        if report.clean:
            break
        again, moved_to = await _audit_once(bus, run_id)
        persistent = tuple(f for f in again.findings if f in report.findings)
        report, standing, position = replace(again, findings=persistent), moved_to == position, moved_to
        if standing:
            break
    return report


async def _connect(url: str) -> Bus:
    """Services wait for a server that is still starting; a person who asks is told."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await Bus.connect(url, "audit")
    except TimeoutError:
        raise ConfigError(
            f"no NATS server answers at {url} within {CONNECT_SECONDS:g} s; name another one, or start it"
        ) from None
    except TransientError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Accounts:
    """Everything derived from one snapshot."""

    snapshot: Snapshot
    books: Books
    weights: Weights
    stored: StoredGroups
    staleness: Staleness
    settled: dict[int, str]
    rollouts: RolloutCheck


async def _audit_once(bus: Bus, run_id: str) -> tuple[AuditReport, tuple[int, int]]:
    snapshot = await read_snapshot(bus, run_id)
    if not snapshot.ledger and not snapshot.unreadable:
        raise ConfigError(f"no run {run_id!r}: its LEDGER subject is empty on this server")
    try:
        books = keep_books(run_id, snapshot.ledger)
    except ValueError as error:
        findings = (*snapshot.unreadable, Finding(Fault.SPEC, str(error)))
        return AuditReport(run_id, findings=findings), snapshot.position
    created = snapshot.ledger[0].message.run_created
    weights = follow_weights(created, books.batches, snapshot.trainer)
    purged = purged_floors(weights, books.batches)
    stored = StoredGroups(snapshot.groups, snapshot.unreadable_groups, books, purged)
    settled = settle_by_outcome(books, stored)
    rollouts = RolloutCheck(run_id, _scored(books, stored, settled), purged.rollouts)
    async for sequence, payload in read_rollouts(bus, run_id):
        rollouts.take(sequence, payload)
    staleness = measure_staleness(books, weights)
    accounts = _Accounts(snapshot, books, weights, stored, staleness, settled, rollouts)
    return _report(accounts, _ledger_findings(accounts)), snapshot.position


def _scored(books: Books, stored: StoredGroups, settled: dict[int, str]) -> list[Scored]:
    """The groups whose rollouts must be there: all batches', and those that are kept and wait for one."""
    trained = [
        Scored(f" of batch {batch.k}", entry.n, entry.attempt, entry.rollouts)
        for batch in books.batches
        for entry in batch.groups
    ]
    waiting = [(n, stored.of(n)) for n in sorted(books.live - settled.keys())]
    return trained + [Scored("", n, group.attempt, group.rollouts) for n, group in waiting if group]


def _ledger_findings(a: _Accounts) -> list[Finding]:
    purged = purged_floors(a.weights, a.books.batches)
    unsettled = check_unsettled(a.books, a.stored, a.snapshot.prompts, a.settled)
    findings = [
        *a.snapshot.unreadable,
        *a.books.findings,
        *a.weights.findings,
        *unsettled,
        *check_groups(a.books, a.stored, purged),
        *check_order(a.books, a.stored),
        *check_capacity(a.books, a.snapshot.ledger, a.stored, sorted(a.settled)),
        *a.staleness.findings,
        *a.rollouts.finish(),
    ]
    if a.books.completed and a.weights.covered < a.weights.end:
        covered = f"its checkpoint covers {a.weights.covered}"
        detail = f"the run has {a.books.state} with {a.weights.end} batches, {covered}"
        findings.append(Finding(Fault.UNTRAINED, detail))
    return findings


def _report(a: _Accounts, findings: list[Finding]) -> AuditReport:
    books, weights = a.books, a.weights
    folders = CheckpointFolders(books.run_id, books.rules.config_hash, a.snapshot.ledger)
    on_disk = folders.check(weights.checkpoints)
    dropped = Counter([*books.dropped.values(), *a.settled.values()])
    live = books.live - a.settled.keys()
    waiting = sum(a.stored.of(n) is not None for n in live)
    trained = sum(k < weights.trained for k in books.emitted.values())
    findings = [*findings, *on_disk.findings]
    return AuditReport(
        run_id=books.run_id,
        state=books.state,
        issued=books.issued,
        live=len(live),
        in_flight=len(live) - waiting,
        dropped=dict(dropped),
        kept=len(books.emitted) + waiting,
        trained=trained,
        awaiting_training=len(books.emitted) - trained,
        trained_twice=len(books.twice | weights.twice),
        lost=len(books.lost),
        max_staleness=books.rules.max_staleness,
        staleness_histogram=dict(sorted(a.staleness.histogram.items())),
        staleness_violations=a.staleness.violations,
        capacity_violations=sum(f.kind is Fault.CAPACITY for f in findings),
        batches=len(books.batches),
        training_steps=weights.trained,
        lineages=weights.lineage,
        newest_checkpoint=weights.covered,
        checkpoints_verified=on_disk.verified,
        checkpoints_elsewhere=on_disk.elsewhere,
        rollouts_verified=a.rollouts.verified,
        rollouts_purged=a.rollouts.purged,
        rollouts_orphaned=a.rollouts.orphans,
        groups_with_several_attempts=sum(len(names) > 1 for names in a.rollouts.attempts.values()),
        late_groups=a.stored.late,
        unreadable_groups=len(books.unread | a.stored.unread()),
        response_length=mean_lengths(books, a.stored, [*books.dropped, *a.settled]),
        findings=tuple(sorted(set(findings))),
    )
