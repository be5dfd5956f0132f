"""Admission counted again: consumed + kept + in flight, at each ISSUE record, against the version it states."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from sluice.audit.findings import Fault, Finding
from sluice.audit.groups import StoredGroups
from sluice.audit.ledger import Books
from sluice.audit.reading import Stored
from sluice.wire.v1.ledger_pb2 import Batch, Issue, LedgerRecord


class _Window:
    """Groups that the filter dropped between two batches. No record says when; their GROUPS sequence does.

    An ISSUE record states the highest sequence its coordinator had seen. Of a purged group it is unknown when it came:
    the doubt goes to the coordinator.
    """

    def __init__(self, dropped: Sequence[int], stored: StoredGroups) -> None:
        sequences = {n: stored.sequence_of(n) for n in dropped}
        self._known = sorted(sequence for sequence in sequences.values() if sequence is not None)
        self._unknown = sorted(n for n, sequence in sequences.items() if sequence is None)
        self.size = len(dropped)

    def settled_before(self, issue: Issue) -> int:
        return bisect_right(self._known, issue.floors.groups) + bisect_left(self._unknown, issue.first)


def check_capacity(
    books: Books, ledger: Iterable[Stored[LedgerRecord]], stored: StoredGroups, unrecorded: Sequence[int]
) -> list[Finding]:
    """Replay LEDGER in order; `unrecorded` are drops by outcome after the last batch that no record names yet."""
    windows = [_Window(_dropped_by_outcome(batch, books), stored) for batch in books.batches]
    windows.append(_Window([*books.filtered_since_batch, *unrecorded], stored))
    findings: list[Finding] = []
    batches = dropped = 0
    for entry in ledger:
        match entry.message.WhichOneof("record"):
            case "batch":
                dropped += windows[batches].size
                batches += 1
            case "drop":
                dropped += sum(n in books.given_up for n in entry.message.drop.groups)
            case "issue":
                issue = entry.message.issue
                used = issue.first + issue.count - dropped - windows[batches].settled_before(issue)
                findings += _check_issue(books, issue, used, batches)
    return findings


def _dropped_by_outcome(batch: Batch, books: Books) -> list[int]:
    return [dropped.n for dropped in batch.dropped if dropped.n not in books.given_up]


def _check_issue(books: Books, issue: Issue, used: int, batches: int) -> list[Finding]:
    rules, name = books.rules, f"with group {issue.first + issue.count - 1}, issued at version {issue.version}"
    if not rules.rounds:
        limit = rules.capacity(issue.version)
        detail = f"{name}, {used} groups were consumed, kept or in flight; {limit} are allowed"
        return [Finding(Fault.CAPACITY, detail)] if used > limit else []
    # A round starts from an empty queue but for what is kept, and on the weights that the last batch gave.
    limit = rules.gen_batch_size
    k = rules.first_step + batches
    if issue.count > limit or issue.version < k:
        detail = f"{name}, {issue.count} groups went out for batch {k}; gen_batch_size is {limit}"
        return [Finding(Fault.CAPACITY, detail)]
    return []
