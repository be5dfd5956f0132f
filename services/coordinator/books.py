"""The queue's books: every issued group is counted once, and once only, whoever folds the same records and groups."""

from __future__ import annotations

from dataclasses import replace

from sluice.types import Batch, DropReason, Group, GroupStatus, SamplingStats, Tally


class Books:
    """Counts of the whole run (`tally`), and what has happened since the last batch, which the next BATCH carries."""

    def __init__(self, last: Batch | None = None) -> None:
        self.tally = last.tally if last else Tally()
        self.issued = 0
        self.sampled = SamplingStats()
        self.dropped: list[tuple[int, DropReason]] = []
        self.unrecorded: dict[int, DropReason] = {}
        """Dropped by their outcomes, and not yet named by a record: the next BATCH names them, or a DROP at the end."""
        self._uncounted: set[int] = set()
        """Given up by a DROP record before their group was stored: should it come, its outcomes are statistics."""
        self._counted = last.groups_seen if last else 0
        """GROUPS sequence up to which an earlier BATCH has counted."""

    def issue(self, count: int, issued: int) -> None:
        """`count` more groups, `issued` in all."""
        self.issued += count
        self.tally = replace(self.tally, issued=issued)

    def drop(self, n: int, reason: DropReason, recorded: bool) -> None:
        """A live group is settled without training; `recorded`: by a DROP record, otherwise by its outcomes."""
        self.dropped.append((n, reason))
        if not recorded:
            self.unrecorded[n] = reason
        dropped = {**self.tally.dropped, reason: self.tally.dropped.get(reason, 0) + 1}
        self.tally = replace(self.tally, dropped=dropped)

    def expect_late(self, n: int) -> None:
        """Group n was given up while in flight."""
        self._uncounted.add(n)

    def count(self, sequence: int, group: Group, reason: DropReason | None) -> None:
        """The outcomes of a live group that was stored at GROUPS `sequence`."""
        if sequence > self._counted and group.status is GroupStatus.SCORED:
            self._add(group, reason)

    def count_late(self, group: Group, reason: DropReason | None) -> None:
        """A stored group that is no longer live: news only if a DROP record has settled it since the last batch."""
        if group.n in self._uncounted:
            self._uncounted.discard(group.n)
            if group.status is GroupStatus.SCORED:
                self._add(group, reason)

    def _add(self, group: Group, reason: DropReason | None) -> None:
        s, rollouts = self.sampled, group.rollouts
        length = sum(r.length for r in rollouts)
        self.sampled = SamplingStats(
            groups=s.groups + 1,
            rollouts=s.rollouts + len(rollouts),
            reward_sum=s.reward_sum + sum(r.reward for r in rollouts),
            acc_sum=s.acc_sum + sum(r.acc for r in rollouts),
            length_sum=s.length_sum + length,
            truncated=s.truncated + sum(r.finish_reason == "length" for r in rollouts),
            tokens=s.tokens + length,
        )
        self.tally = replace(
            self.tally,
            scored_groups=self.tally.scored_groups + 1,
            kept_groups=self.tally.kept_groups + (reason is None),
        )
