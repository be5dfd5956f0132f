"""The queue's books: every issued group is counted once, and once only, whoever folds the same records and groups."""

from __future__ import annotations

from sluice.types import Batch, DropReason, FinishReason, Group, GroupStatus, SamplingStats, Tally


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
        t = self.tally
        self.tally = Tally(issued, t.trained, t.dropped, t.scored_groups, t.kept_groups)

    def drop(self, n: int, reason: DropReason, recorded: bool) -> None:
        """A live group is settled without training; `recorded`: by a DROP record, otherwise by its outcomes."""
        self.dropped.append((n, reason))
        if not recorded:
            self.unrecorded[n] = reason
        t = self.tally
        dropped = {**t.dropped, reason: t.dropped.get(reason, 0) + 1}
        self.tally = Tally(t.issued, t.trained, dropped, t.scored_groups, t.kept_groups)

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
        reward = acc = 0.0
        length = truncated = 0
        for rollout in group.rollouts:  # once over them: this is most of what a group costs the queue
            reward += rollout.score + rollout.shaping
            acc += rollout.acc
            length += rollout.length
            truncated += rollout.finish_reason is FinishReason.LENGTH
        s, t = self.sampled, self.tally
        self.sampled = SamplingStats(
            groups=s.groups + 1,
            rollouts=s.rollouts + len(group.rollouts),
            reward_sum=s.reward_sum + reward,
            acc_sum=s.acc_sum + acc,
            length_sum=s.length_sum + length,
            truncated=s.truncated + truncated,
            tokens=s.tokens + length,
        )
        self.tally = Tally(t.issued, t.trained, t.dropped, t.scored_groups + 1, t.kept_groups + (reason is None))
