"""Batches against the groups that workers stored, and what became of the groups that no record has settled yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluice.audit.findings import Fault, Finding, span
from sluice.audit.ledger import Books
from sluice.audit.outcomes import BY_OUTCOME, reason_to_drop
from sluice.audit.reading import Stored
from sluice.wire.v1.ledger_pb2 import BatchGroup, Floors
from sluice.wire.v1.rollouts_pb2 import Group, RolloutSummary


class StoredGroups:
    """GROUPS as they are now: by sequence, and the first message of each issue number."""

    def __init__(
        self, messages: Iterable[Stored[Group]], unreadable: Mapping[int, int], books: Books, purged: Floors
    ) -> None:
        self.unreadable = unreadable
        """Issue number of each message that cannot be decoded, by its sequence."""
        self.by_sequence: dict[int, Group] = {}
        self.late = 0
        """Messages for an issue number that had one already: ignored, and no fault."""
        self._first: dict[int, int] = {}
        self._books, self._purged = books, purged
        for stored in messages:
            self.by_sequence[stored.sequence] = stored.message
            if self._first.setdefault(stored.message.n, stored.sequence) != stored.sequence:
                self.late += 1

    def unread(self) -> set[int]:
        """Live groups whose message cannot be decoded: the coordinator is to drop them, and records that."""
        return self._books.live & set(self.unreadable.values())

    def is_whole(self, n: int) -> bool:
        """No message of group `n` can have been purged: all were stored after the floors it was issued with."""
        issue = self._books.issue_of(n)
        return issue is not None and issue.floors.groups >= self._purged.groups

    def sequence_of(self, n: int) -> int | None:
        """Where the one group `n` was stored; None when it is not there, or may be a late copy of a purged one."""
        return self._first.get(n) if self.is_whole(n) else None

    def of(self, n: int) -> Group | None:
        sequence = self.sequence_of(n)
        return None if sequence is None else self.by_sequence[sequence]


def settle_by_outcome(books: Books, stored: StoredGroups) -> dict[int, str]:
    """Live groups whose stored outcomes drop them: the coordinator records those with its next batch, or never."""
    settled: dict[int, str] = {}
    for n in sorted(books.live):
        group = stored.of(n)
        reason = reason_to_drop(group, books.rules) if group else None
        if reason is not None:
            settled[n] = reason
    return settled


def check_unsettled(books: Books, stored: StoredGroups, prompts: set[int], settled: dict[int, str]) -> list[Finding]:
    """Each live group must be stored or on offer; a run that has completed leaves none."""
    open_groups = books.live - settled.keys()
    held = {n for n in open_groups if n in prompts or stored.of(n) is not None} | stored.unread()
    gone = {n for n in open_groups - held if books.ended or n < books.published} - books.lost
    books.lost |= gone
    findings = []
    if gone:
        findings.append(
            Finding(Fault.LOST, f"groups {span(gone)} are live but have neither a prompt nor a stored group")
        )
    if books.completed and held:
        findings.append(
            Finding(Fault.UNSETTLED, f"the run has {books.state}, but groups {span(held)} neither trained nor dropped")
        )
    return findings


def check_groups(books: Books, stored: StoredGroups, purged: Floors) -> list[Finding]:
    """Every batch's groups and every drop by outcome, against GROUPS where they are still stored."""
    findings = []
    for batch in books.batches:
        for entry in batch.groups:
            findings += _check_kept(books, batch.k, entry)
            findings += _check_stored(books, batch.k, entry, stored, purged)
    return findings + _check_reasons(books, stored) + _check_unreadable(books, stored)


def _check_unreadable(books: Books, stored: StoredGroups) -> list[Finding]:
    """Whoever counted a group had read it. One that was given up, or is still to be, nobody needs to have read."""
    return [
        Finding(Fault.UNREADABLE, f"GROUPS sequence {sequence}: group {n} cannot be decoded, but was counted as stored")
        for sequence, n in stored.unreadable.items()
        if stored.is_whole(n) and n not in books.given_up and n not in books.live
    ]


def _check_kept(books: Books, k: int, entry: BatchGroup) -> list[Finding]:
    name, rules = f"group {entry.n} of batch {k}", books.rules
    findings = []
    if len(entry.rollouts) != rules.group_size:
        detail = f"{name} has {len(entry.rollouts)} rollouts, group_size is {rules.group_size}"
        return [Finding(Fault.BATCH_SIZE, detail)]
    issue = books.issue_of(entry.n)
    if issue is not None and issue.version != entry.version:
        detail = f"{name} claims to be issued at version {entry.version}, its ISSUE record says {issue.version}"
        findings.append(Finding(Fault.VERSION, detail))
    reason = reason_to_drop(Group(status="scored", rollouts=entry.rollouts), rules)
    if reason is not None:
        findings.append(Finding(Fault.REASON, f"{name} should have been dropped as {reason}"))
    if unscored := [i for i, rollout in enumerate(entry.rollouts) if rollout.verdict != "scored"]:
        findings.append(Finding(Fault.REASON, f"{name} has rollouts without a verdict: {span(unscored)}"))
    return findings


def _check_stored(books: Books, k: int, entry: BatchGroup, stored: StoredGroups, purged: Floors) -> list[Finding]:
    where = f"group {entry.n} of batch {k}, GROUPS sequence {entry.groups_sequence}"
    group = stored.by_sequence.get(entry.groups_sequence)
    if group is None:
        gone = entry.groups_sequence > purged.groups and entry.groups_sequence not in stored.unreadable
        return [Finding(Fault.GROUP_MISSING, f"{where}: not stored, nothing may purge it yet")] if gone else []
    first = stored.sequence_of(entry.n)
    if first not in (None, entry.groups_sequence):
        return [Finding(Fault.GROUP_DIFFERS, f"{where}: another attempt was stored first, at {first}")]
    theirs = (group.run_id, group.n, group.attempt, group.status, [_as_in_batch(r) for r in group.rollouts])
    if theirs != (books.run_id, entry.n, entry.attempt, "scored", list(entry.rollouts)):
        return [Finding(Fault.GROUP_DIFFERS, f"{where}: the stored group has other rollouts, outcomes or identity")]
    return []


def _as_in_batch(rollout: RolloutSummary) -> RolloutSummary:
    """A BATCH record does not repeat where in a rollout its versions change."""
    named = RolloutSummary()
    named.CopyFrom(rollout)
    named.ClearField("spans")
    return named


def _check_reasons(books: Books, stored: StoredGroups) -> list[Finding]:
    findings = []
    for n, reason in books.dropped.items():
        if reason not in BY_OUTCOME or n in books.given_up or not stored.is_whole(n):
            continue
        group = stored.of(n)
        if group is None and n not in stored.unreadable.values():
            detail = f"group {n}, dropped as {reason}: not stored, nothing may purge it yet"
            findings.append(Finding(Fault.GROUP_MISSING, detail))
        elif group is not None and (own := reason_to_drop(group, books.rules)) != reason:
            detail = f"group {n} was dropped as {reason}; its outcomes say {own or 'keep'}"
            findings.append(Finding(Fault.REASON, detail))
    return findings


def check_order(books: Books, stored: StoredGroups) -> list[Finding]:
    """Oldest-issued first: no batch leaves out an older group that its coordinator knew to be kept."""
    sequences = {entry.n: entry.groups_sequence for batch in books.batches for entry in batch.groups}
    sequences |= {n: s for n in books.live if (s := stored.sequence_of(n)) is not None and _is_kept(books, stored, n)}
    ready = sorted(sequences)
    passed_over: set[int] = set()
    taken: set[int] = set()
    findings: list[Finding] = []
    at = 0
    for batch in books.batches:
        numbers = [entry.n for entry in batch.groups]
        youngest = max(numbers, default=0)
        taken.update(numbers)
        while at < len(ready) and ready[at] < youngest:
            passed_over.add(ready[at])
            at += 1
        passed_over -= taken
        seen = max([batch.groups_seen, *(entry.groups_sequence for entry in batch.groups)])
        if left := {n for n in passed_over if n < youngest and sequences[n] <= seen}:
            detail = f"batch {batch.k} takes group {youngest} and leaves {span(left)}, stored before"
            findings.append(Finding(Fault.ORDER, detail))
    return findings


def _is_kept(books: Books, stored: StoredGroups, n: int) -> bool:
    group = stored.of(n)
    return group is not None and reason_to_drop(group, books.rules) is None


def mean_lengths(books: Books, stored: StoredGroups, dropped: Iterable[int]) -> dict[str, float | None]:
    """Mean response length of the kept groups and of the dropped ones that are still stored: the filter's bias."""
    kept = [r.length for batch in books.batches for entry in batch.groups for r in entry.rollouts]
    lost = [r.length for n in dropped if (group := stored.of(n)) for r in group.rollouts]
    return {"kept": _mean(kept), "dropped": _mean(lost)}


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
