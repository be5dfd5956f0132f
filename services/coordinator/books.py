"""The queue's books: every issued group is counted once, and once only, whoever folds the same records and groups."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.types import Batch, Drop, DropReason, FinishReason, Group, GroupStatus, SamplingStats, Tally


class Books:
    """Counts of the whole run (`tally`), and what has happened since the last batch, which the next BATCH carries."""

    def __init__(self, last: Batch | None = None) -> None:
        tally = last.tally if last else Tally()
        self._issued_in_all, self._trained = tally.issued, tally.trained
        self._dropped_in_all = dict(tally.dropped)
        self._scored, self._kept = tally.scored_groups, tally.kept_groups
        self.issued = 0
        self.dropped: list[tuple[int, DropReason]] = []
        self.unrecorded: dict[int, DropReason] = {}
        """Dropped by their outcomes, and not yet named by a record: the next BATCH names them, or a DROP at the end."""
        self._uncounted: set[int] = set()
        """Given up by a DROP record before their group was stored: should it come, its outcomes are statistics."""
        self._counted = last.groups_seen if last else 0
        """GROUPS sequence up to which an earlier BATCH has counted."""
        self._groups = self._rollouts = self._tokens = self._truncated = 0
        self._reward_sum = self._acc_sum = 0.0

    @property
    def tally(self) -> Tally:
        """Counts of the run as of now."""
        return Tally(self._issued_in_all, self._trained, dict(self._dropped_in_all), self._scored, self._kept)

    @property
    def sampled(self) -> SamplingStats:
        """Of the groups stored since the last batch."""
        return SamplingStats(
            groups=self._groups,
            rollouts=self._rollouts,
            reward_sum=self._reward_sum,
            acc_sum=self._acc_sum,
            length_sum=self._tokens,
            truncated=self._truncated,
            tokens=self._tokens,
        )

    def issue(self, count: int, issued: int) -> None:
        """`count` more groups, `issued` in all."""
        self.issued += count
        self._issued_in_all = issued

    def drop(self, n: int, reason: DropReason, recorded: bool) -> None:
        """A live group is settled without training; `recorded`: by a DROP record, otherwise by its outcomes."""
        self.dropped.append((n, reason))
        if not recorded:
            self.unrecorded[n] = reason
        self._dropped_in_all[reason] = self._dropped_in_all.get(reason, 0) + 1

    def unrecorded_drops(self) -> Iterator[Drop]:
        """The records that would name all `unrecorded`."""
        by_reason: dict[DropReason, list[int]] = {}
        for n, reason in self.unrecorded.items():
            by_reason.setdefault(reason, []).append(n)
        return (Drop(tuple(groups), reason) for reason, groups in by_reason.items())

    def skip(self, n: int) -> None:
        """A group of an earlier batch is not trained after all, which a DROP record says."""
        self._trained -= 1
        self.drop(n, DropReason.SKIPPED_BATCH, recorded=True)

    def expect_late(self, n: int) -> None:
        """Group n was given up while in flight."""
        self._uncounted.add(n)

    def count(self, sequence: int, group: Group, reason: DropReason | None) -> None:
        """The outcomes of a group that was stored at GROUPS `sequence`."""
        if sequence > self._counted and group.status is GroupStatus.SCORED:
            self._add(group, reason)

    def count_late(self, sequence: int, group: Group, reason: DropReason | None) -> None:
        """A stored group that is no longer live: news only if a DROP record has settled it since the last batch."""
        if group.n in self._uncounted:
            self._uncounted.discard(group.n)
            self.count(sequence, group, reason)  # a successor hears groups again that were kept at the last batch

    def _add(self, group: Group, reason: DropReason | None) -> None:
        reward = acc = 0.0
        length = truncated = 0
        for rollout in group.rollouts:  # once over them: this is most of what a group costs the queue
            reward += rollout.score + rollout.shaping
            acc += rollout.acc
            length += rollout.length
            truncated += rollout.finish_reason is FinishReason.LENGTH
        self._groups += 1
        self._rollouts += len(group.rollouts)
        self._reward_sum += reward
        self._acc_sum += acc
        self._tokens += length
        self._truncated += truncated
        self._scored += 1
        self._kept += reason is None
