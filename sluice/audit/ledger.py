"""LEDGER counted again from its first record: what was issued, what became of it, and whether the records agree."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from sluice.audit.findings import Fault, Finding, span
from sluice.audit.outcomes import BY_OUTCOME
from sluice.audit.reading import Stored
from sluice.audit.rules import Rules, hash_of_spec
from sluice.wire.v1.ledger_pb2 import Batch, Drop, Issue, LedgerRecord, RunCreated, StateChange

SKIPPED = "skipped_batch"
TERMINAL = frozenset({"stopped", "succeeded", "failed"})


class Books:
    """The audit's own accounts of one run; `findings` grows where a record contradicts the records before it."""

    rules: Rules

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.findings: list[Finding] = []
        self.issues: list[Issue] = []
        self.batches: list[Batch] = []
        self.next_n = 0
        self.skipped = 0
        """Draws of the data order that ISSUE records pass over."""
        self.issued = 0
        self.live: set[int] = set()
        self.emitted: dict[int, int] = {}
        """Issue number -> index of the batch that has it."""
        self.dropped: dict[int, str] = {}
        """Issue number -> reason."""
        self.given_up: set[int] = set()
        """Those of `dropped` that a DROP record settled for another reason than their outcomes."""
        self.unread: set[int] = set()
        """Those of `given_up` whose stored group the coordinator could not read."""
        self.twice: set[int] = set()
        self.lost: set[int] = set()
        self.skipped_batches: set[int] = set()
        """Indices of batches that a person took out of training."""
        self.published = 0
        """Issue numbers below this have surely been offered to workers: who issued them went on to write more."""
        self.state, self.reason = "queued", ""
        self._awaiting_batch: dict[int, str] = {}
        """Groups of DROP records that the next BATCH record must repeat."""

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def completed(self) -> bool:
        """Ended in order, with everything settled and trained: not `failed`."""
        return self.state in ("stopped", "succeeded")

    def issue_of(self, n: int) -> Issue | None:
        """The ISSUE record that covers `n`."""
        at = bisect_right(self.issues, n, key=lambda issue: issue.first) - 1
        found = self.issues[at] if at >= 0 else None
        return found if found is not None and n < found.first + found.count else None

    @property
    def filtered_since_batch(self) -> list[int]:
        """Groups that DROP records after the last batch name as dropped by their outcomes."""
        return [n for n in self._awaiting_batch if n not in self.given_up]

    def take(self, entry: Stored[LedgerRecord]) -> None:
        """Count the next record."""
        record = entry.message
        if record.WhichOneof("record") != "claim":
            self.published = self.next_n
        match record.WhichOneof("record"):
            case "run_created":
                self._take_created(record.run_created)
            case "issue":
                self._take_issue(record.issue)
            case "drop":
                self._take_drop(record.drop)
            case "batch":
                self._take_batch(record.batch)
            case "state_change":
                self._take_state(record.state_change)
            case "claim":
                pass
            case _:
                self.find(Fault.UNREADABLE, f"LEDGER sequence {entry.sequence} is of no known kind")

    def find(self, kind: Fault, detail: str) -> None:
        self.findings.append(Finding(kind, detail))

    def _take_created(self, created: RunCreated) -> None:
        if created.run_id != self.run_id:
            self.find(Fault.SPEC, f"the ledger creates run {created.run_id!r}, its subject is {self.run_id!r}")
        if hash_of_spec(created.spec_json) != created.config_hash:
            self.find(Fault.SPEC, f"the spec does not have the config hash {created.config_hash!r} of its record")

    def _take_state(self, change: StateChange) -> None:
        self.state, self.reason = change.state, change.reason
        self.published = min(self.published, json.loads(change.fields_json or "{}").get("unoffered", self.published))

    def _take_issue(self, issue: Issue) -> None:
        end = issue.first + issue.count
        if self.ended:
            self.find(Fault.AFTER_END, f"groups {issue.first} to {end - 1} were issued after the run had {self.state}")
        if issue.first > self.next_n:
            self.find(Fault.ISSUE_NUMBERS, f"groups {self.next_n} to {issue.first - 1} have no ISSUE record")
        elif issue.first < self.next_n:
            again = f"groups {issue.first} to {min(end, self.next_n) - 1}"
            self.find(Fault.ISSUE_NUMBERS, f"{again} were issued again")
        if self.issues and issue.version < self.issues[-1].version:
            self.find(
                Fault.VERSION,
                f"group {issue.first} was issued at version {issue.version}, after one at {self.issues[-1].version}",
            )
        self._take_skips(issue)
        new = range(max(issue.first, self.next_n), end)
        if new:
            self.issues.append(Issue(first=new.start, count=len(new), version=issue.version, floors=issue.floors))
        self.live.update(new)
        self.issued += len(new)
        self.next_n = max(self.next_n, end)

    def _take_skips(self, issue: Issue) -> None:
        """Each draw of the data order is issued or skipped, once: skips are among the draws that the record takes."""
        begin = issue.first + self.skipped
        end = begin + issue.count + len(issue.skipped)
        if sorted(set(issue.skipped)) != list(issue.skipped) or any(not begin <= d < end for d in issue.skipped):
            skips = f"skips the draws {span(set(issue.skipped))}"
            self.find(
                Fault.ISSUE_NUMBERS, f"the ISSUE record of group {issue.first} {skips} out of {begin} to {end - 1}"
            )
        self.skipped += len(issue.skipped)

    def _take_skip(self, drop: Drop) -> None:
        """A batch is not trained after all: what was done with its weights is compared as if it had no groups."""
        at = self.emitted.get(drop.groups[0]) if drop.groups else None
        index = None if at is None else at - self.rules.first_step
        if index is None or {group.n for group in self.batches[index].groups} != set(drop.groups):
            self.find(Fault.SETTLED_TWICE, f"groups {span(set(drop.groups))} were skipped, and are no batch")
            return
        without = Batch()
        without.CopyFrom(self.batches[index])
        del without.groups[:]
        self.batches[index] = without
        self.skipped_batches.add(self.batches[index].k)
        for n in drop.groups:
            del self.emitted[n]
            self._settle(n, drop.reason)
            self._awaiting_batch[n] = drop.reason
            self.given_up.add(n)

    def _take_drop(self, drop: Drop) -> None:
        if drop.reason == SKIPPED:
            self._take_skip(drop)
            return
        for n in drop.groups:
            if self._may_settle(n, f"a DROP record ({drop.reason})"):
                self._settle(n, drop.reason)
                self._awaiting_batch[n] = drop.reason
                if drop.error:
                    self.unread.add(n)
                if drop.error or drop.reason not in BY_OUTCOME:
                    self.given_up.add(n)

    def _take_batch(self, batch: Batch) -> None:
        where = f"batch {batch.k}"
        if self.ended:
            self.find(Fault.AFTER_END, f"{where} was emitted after the run had {self.state}")
        due = self.rules.first_step + len(self.batches)
        if batch.k != due:
            self.find(Fault.BATCH_NUMBERS, f"{where} stands where batch {due} belongs")
        self.batches.append(batch)
        for group in batch.groups:
            self._train(group.n, batch.k)
        for dropped in batch.dropped:
            self._repeat_or_settle(dropped.n, dropped.reason, where)
        if self._awaiting_batch:
            self.find(Fault.TALLY, f"{where} does not name the dropped groups {span(set(self._awaiting_batch))}")
            self._awaiting_batch.clear()
        self._compare_live(batch)
        self._compare_tally(batch)

    def _train(self, n: int, k: int) -> None:
        if n in self.emitted:
            self.twice.add(n)
            self.find(Fault.TRAINED_TWICE, f"group {n} is in batch {self.emitted[n]} and in batch {k}")
        elif self._may_settle(n, f"batch {k}"):
            self.live.discard(n)
        self.emitted.setdefault(n, k)

    def _repeat_or_settle(self, n: int, reason: str, where: str) -> None:
        if n in self._awaiting_batch:
            recorded = self._awaiting_batch.pop(n)
            if recorded != reason:
                self.find(Fault.TALLY, f"{where} drops group {n} as {reason}, its DROP record says {recorded}")
        elif self._may_settle(n, f"{where} ({reason})"):
            self._settle(n, reason)

    def _may_settle(self, n: int, by: str) -> bool:
        if n in self.live:
            return True
        if n in self.dropped:
            self.find(Fault.SETTLED_TWICE, f"group {n} was dropped as {self.dropped[n]}, then settled again by {by}")
        elif n in self.emitted:
            self.find(Fault.SETTLED_TWICE, f"group {n} is in batch {self.emitted[n]}, then settled again by {by}")
        else:
            self.find(Fault.NEVER_ISSUED, f"group {n} was never issued, but settled by {by}")
        return False

    def _settle(self, n: int, reason: str) -> None:
        self.live.discard(n)
        self.dropped[n] = reason

    def _compare_live(self, batch: Batch) -> None:
        listed = {n: issue for issue in batch.live for n in range(issue.first, issue.first + issue.count)}
        forgotten = self.live - listed.keys() - self.lost
        if forgotten:
            self.lost |= forgotten
            self.find(Fault.LOST, f"batch {batch.k} forgets the live groups {span(forgotten)}")
        if extra := listed.keys() - self.live:
            self.find(Fault.LIVE, f"batch {batch.k} lists as live the settled or unknown groups {span(extra)}")
        for n in listed.keys() & self.live:
            issued = self.issue_of(n)
            if issued is None or (issued.version, issued.floors) != (listed[n].version, listed[n].floors):
                self.find(Fault.LIVE, f"batch {batch.k} lists group {n} with other ISSUE data than it was issued with")

    def _compare_tally(self, batch: Batch) -> None:
        t = batch.tally
        own = {"next_n": self.next_n, "issued": self.next_n, "trained": len(self.emitted), "skipped": self.skipped}
        own |= Counter(self.dropped.values())
        theirs = {"next_n": batch.next_n, "issued": t.issued, "trained": t.trained, "skipped": batch.skipped}
        theirs |= dict(t.dropped)
        for name in sorted(own.keys() | theirs.keys()):
            if own.get(name, 0) != theirs.get(name, 0):
                self.find(
                    Fault.TALLY,
                    f"batch {batch.k} counts {name} = {theirs.get(name, 0)}, the records give {own.get(name, 0)}",
                )
        if not t.trained <= t.kept_groups <= t.scored_groups:
            self.find(
                Fault.TALLY,
                f"batch {batch.k} counts {t.trained} trained, {t.kept_groups} kept, {t.scored_groups} scored",
            )


def keep_books(run_id: str, ledger: Iterable[Stored[LedgerRecord]]) -> Books:
    """The accounts after all of `ledger`.

    Raises:
        ValueError: its first record does not create a run, so there is nothing to compare with.
    """
    books = Books(run_id)
    records = iter(ledger)
    first = next(records, None)
    if first is None or first.message.WhichOneof("record") != "run_created":
        raise ValueError(f"the ledger of run {run_id!r} does not begin with the record that creates it")
    try:
        books.rules = Rules.of(first.message.run_created)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the spec in the ledger of run {run_id!r} cannot be read: {error}") from None
    for entry in (first, *records):
        books.take(entry)
    _check_batch_sizes(books)
    return books


def _check_batch_sizes(books: Books) -> None:
    """B groups each; only the very last batch of a run may be short."""
    size = books.rules.batch_size
    for position, batch in enumerate(books.batches, start=1):
        last = position == len(books.batches)
        if batch.k in books.skipped_batches:
            continue
        if len(batch.groups) != size and not (last and 0 < len(batch.groups) < size):
            books.find(Fault.BATCH_SIZE, f"batch {batch.k} has {len(batch.groups)} groups, prompts_per_step is {size}")
