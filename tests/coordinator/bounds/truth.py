"""What the contract says of a run, counted from its records alone and not by the code that is under test.

Every record is judged at the moment that it is stored: an assertion here stops the coordinator that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.types import Batch, Drop, DropReason, Group, GroupStatus, Issue, LedgerRecord


@dataclass(frozen=True)
class Bounds:
    """What a run must keep to."""

    batch_size: int
    max_staleness: int
    total_steps: int
    overissue: int = 0
    rounds: int = 0
    """Size of a generation batch in `rounds`; 0 in `streaming`."""
    data_limit: int | None = None
    wait: bool = True
    """No group may be given up for its length."""


@dataclass
class Truth:
    """Groups by what has become of them."""

    bounds: Bounds
    strict: bool = True
    """Judge; without it nothing is looked at."""
    version: int = 0
    """Highest number ever published."""
    issued: int = 0
    batches: list[Batch] = field(default_factory=list)
    flying: dict[int, int] = field(default_factory=dict)
    """Version at issue of each group that is live and has no stored group."""
    kept: dict[int, tuple[int, int, Group]] = field(default_factory=dict)
    """Version at issue, GROUPS sequence and group of each live one that is stored."""
    filtered: dict[int, DropReason] = field(default_factory=dict)
    """Stored with equal outcomes or failed, and not yet named by a record."""
    given_up: dict[int, DropReason] = field(default_factory=dict)
    """By a DROP record that no BATCH has repeated yet."""
    settled: dict[int, str] = field(default_factory=dict)
    """How each group ended, once a record says so."""
    scored: set[int] = field(default_factory=set)
    """Issue numbers of stored groups that have their verdicts, whatever became of them."""

    @property
    def live(self) -> int:
        return len(self.flying) + len(self.kept)

    @property
    def consumed(self) -> int:
        return sum(len(batch.groups) for batch in self.batches)

    @property
    def capacity(self) -> int:
        b = self.bounds
        return min(self.version + b.max_staleness + 1, b.total_steps) * b.batch_size + b.overissue

    def publish(self, version: int) -> None:
        self.version = max(self.version, version)

    def see(self, record: LedgerRecord) -> None:
        if not self.strict:
            return
        match record:
            case Issue():
                self._issue(record)
            case Drop(groups, reason):
                for n in groups:
                    self._drop(n, reason)
            case Batch():
                self._batch(record)

    def see_group(self, sequence: int, group: Group) -> None:
        """Of a group that is settled, or stored already, nothing counts."""
        if group.status is GroupStatus.SCORED:
            self.scored.add(group.n)
        version = self.flying.pop(group.n, None)
        if version is None:
            return
        reason = reason_to_drop(group)
        if reason is None:
            self.kept[group.n] = (version, sequence, group)
        else:
            self.filtered[group.n] = reason

    def _issue(self, issue: Issue) -> None:
        b = self.bounds
        assert issue.first == self.issued and issue.count > 0, "issue numbers have no gap and none is used twice"
        assert issue.version <= self.version, "no group is issued at a version that nobody published"
        self.issued += issue.count
        self.flying |= dict.fromkeys(range(issue.first, self.issued), issue.version)
        assert b.data_limit is None or self.issued <= b.data_limit
        if b.rounds:
            assert issue.version >= len(self.batches), "rounds are on-policy"
            assert len(self.flying) <= b.rounds, "a generation batch begins when the last one is settled"
        else:
            assert self.consumed + self.live <= self.capacity, "capacity is exceeded"

    def _drop(self, n: int, reason: DropReason) -> None:
        assert n not in self.settled, f"group {n} is settled twice"
        assert n in self.flying or n in self.kept or n in self.filtered, f"group {n} was never issued"
        assert not (self.bounds.wait and reason in (DropReason.STRAGGLER, DropReason.SURPLUS)), f"{n}: {reason}"
        for groups in (self.flying, self.kept, self.filtered):
            groups.pop(n, None)
        self.given_up[n] = reason
        self.settled[n] = str(reason)

    def _batch(self, batch: Batch) -> None:
        b = self.bounds
        assert batch.k == len(self.batches) < b.total_steps, "batches have no gap"
        assert batch.next_n == self.issued
        numbers = [entry.n for entry in batch.groups]
        assert numbers == sorted(numbers), "oldest first"
        short = b.data_limit == self.issued and not self.flying and len(numbers) == len(self.kept)
        assert len(numbers) == b.batch_size or short, "only the remainder of exhausted data is a short batch"
        for entry in batch.groups:
            assert entry.n in self.kept, f"group {entry.n} is {self.settled.get(entry.n, 'not stored')}"
            version, sequence, group = self.kept.pop(entry.n)
            assert (entry.version, entry.groups_sequence, entry.attempt) == (version, sequence, group.attempt)
            assert entry.rollouts == group.rollouts, "the batch names what the group was scored on"
            assert batch.k - version <= b.max_staleness, f"group {entry.n} is {batch.k - version} versions stale"
            self.settled[entry.n] = f"batch {batch.k}"
        self._name_dropped(batch)
        self._check_live(batch)
        self.batches.append(batch)

    def _name_dropped(self, batch: Batch) -> None:
        """What the record says was dropped: by a DROP since the last batch, or by outcomes, each once."""
        for n, reason in batch.dropped:
            assert self.given_up.pop(n, None) == reason or self.filtered.pop(n, None) == reason, f"{n}: {reason}"
            self.settled[n] = str(reason)
        assert not self.given_up, f"batch {batch.k} does not name {sorted(self.given_up)}"

    def _check_live(self, batch: Batch) -> None:
        """A group that was stored with equal outcomes may be live to its writer, who has not heard of it."""
        named = {n: i.version for i in batch.live for n in range(i.first, i.first + i.count)}
        surely = self.flying | {n: version for n, (version, _, _) in self.kept.items()}
        assert surely.items() <= named.items(), "the record forgets live groups"
        assert named.keys() <= surely.keys() | self.filtered.keys(), "the record holds groups that are settled"
        t = batch.tally
        assert t.issued == t.trained + sum(t.dropped.values()) + len(named) == self.issued, "each group is counted once"
        assert t.scored_groups <= len(self.scored), "a group's outcomes count once"
        for _, sequence, group in self.kept.values():
            assert sequence > batch.floors.groups, f"a purge would take group {group.n}"
            oldest = min(s for rollout in group.rollouts for s in rollout.sequences)
            assert oldest > batch.floors.rollouts, f"a purge would take rollouts of group {group.n}"

    def stuck(self) -> str:
        """What a coordinator that has heard everything, and can decide nothing more, has left undone."""
        b = self.bounds
        if b.rounds or b.overissue or len(self.batches) >= b.total_steps:
            return ""
        exhausted = self.issued == b.data_limit
        if not exhausted and self.consumed + self.live < self.capacity:
            return f"phantom reservation: {self.consumed} + {self.live} of {self.capacity}"
        if len(self.kept) >= b.batch_size and self.feasible():
            return f"batch {len(self.batches)} could be emitted"
        return ""

    def feasible(self) -> bool:
        """Whether all that the oldest kept groups leave over can meet its deadlines; looks at every later batch."""
        b, k = self.bounds, len(self.batches)
        chosen = set(sorted(self.kept)[: b.batch_size])
        live = self.flying | {n: version for n, (version, _, _) in self.kept.items()}
        due = [version + b.max_staleness for n, version in live.items() if n not in chosen]
        return all(sum(d <= j for d in due) <= (j - k) * b.batch_size for j in range(k, b.total_steps))


def reason_to_drop(group: Group) -> DropReason | None:
    """The filter in the contract's words, on the outcome `acc`."""
    if group.status is GroupStatus.FAILED:
        return DropReason.FAILED
    if group.status is GroupStatus.VERIFIER_FAILED:
        return DropReason.VERIFIER_FAILED
    outcomes = {rollout.acc for rollout in group.rollouts}
    if len(outcomes) > 1:
        return None
    return {1.0: DropReason.ALL_CORRECT, 0.0: DropReason.ALL_WRONG}.get(outcomes.pop(), DropReason.UNIFORM)
