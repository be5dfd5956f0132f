"""What an audit can find wrong. Every kind is an invariant of the design that one record or message contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    UNREADABLE = "unreadable"
    """A record or message that cannot be decoded."""
    SPEC = "spec"
    """The first record does not create this run, or its spec has another hash."""
    ISSUE_NUMBERS = "issue_numbers"
    """Issue numbers with a gap, or issued again."""
    BATCH_NUMBERS = "batch_numbers"
    """Batch indices with a gap, or used again."""
    BATCH_SIZE = "batch_size"
    """A batch, or a group in it, of another size than the spec says."""
    TRAINED_TWICE = "trained_twice"
    """A group in two batches, or a hash chain that has a batch twice."""
    SETTLED_TWICE = "settled_twice"
    """A group dropped twice, or both dropped and put into a batch."""
    NEVER_ISSUED = "never_issued"
    """A batch or a drop names a group that no ISSUE record covers."""
    LOST = "lost"
    """A group that nobody holds: issued, not settled, and neither live nor on its way."""
    UNSETTLED = "unsettled"
    """The run has completed and a group is neither trained nor dropped."""
    UNTRAINED = "untrained"
    """The run has completed and its newest checkpoint does not cover every batch."""
    LIVE = "live"
    """A BATCH record lists a settled group as live, or with other ISSUE data than it was issued with."""
    TALLY = "tally"
    """The counts in a BATCH record are not those of the records before it."""
    STALE = "stale"
    """A rollout trained later than max_staleness after its oldest token's version."""
    VERSION = "version"
    """A policy version that was never published, was not there yet, or is below the one the prompt asked for."""
    CAPACITY = "capacity"
    """More groups in flight, kept and consumed than the policy version allowed."""
    ORDER = "order"
    """An older group was ready and a younger one was taken."""
    GROUP_MISSING = "group_missing"
    """A GROUPS message that is still needed is gone."""
    GROUP_DIFFERS = "group_differs"
    """A BATCH record and the stored group disagree."""
    REASON = "reason"
    """A group was kept or dropped against its outcomes."""
    ROLLOUT_MISSING = "rollout_missing"
    """A rollout that is still needed is gone, or was never stored."""
    ROLLOUT_SWAPPED = "rollout_swapped"
    """The stored rollout is not the one that was scored: other bytes, or of another attempt, group or position."""
    ROLLOUT_DIFFERS = "rollout_differs"
    """The stored rollout has another length, end or policy version than its group says."""
    CHAIN = "chain"
    """A version's or a checkpoint's hash chain is not that of the batches before it."""
    LINEAGE = "lineage"
    """TRAINER records out of order: a version skipped, an overtaken trainer that went on, a restore from nothing."""
    CHECKPOINT = "checkpoint"
    """A checkpoint on disk is not the one that its record names, or its files are not those of its manifest."""
    AFTER_END = "after_end"
    """Groups issued or batches emitted after the run had ended."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One broken invariant; `detail` names the numbers."""

    kind: Fault
    detail: str


def span(numbers: list[int] | set[int], most: int = 8) -> str:
    """Issue numbers for people, cut short: `3, 5, 7 and 12 more`."""
    shown = sorted(numbers)
    rest = len(shown) - most
    return ", ".join(map(str, shown[:most])) + (f" and {rest} more" if rest > 0 else "")
