"""The filter queue: dynamic sampling with bounded staleness, as one pure class.

Groups are issued in order, come back in any order, are kept or dropped, and leave in batches of exactly B. The class
does no I/O and knows no clock: the service, the property tests and the simulator all drive the same code. It plans
records (`plan_issue`, `plan_drop`, `plan_batch`); the caller stores each in LEDGER and only then lets it happen
(`commit`).

    admission   issue while consumed + live < min(v + η + 1, total_steps) · B
    deadline    a group issued at version v trains in batch v + η at the latest; deadlines never decrease in issue order
    emission    batch k takes the B oldest-issued kept groups, once the rest stays feasible: for each later batch j at
                most (j − k) · B live groups with deadline ≤ j are left over, and none with deadline ≤ k

Together these give: staleness never above η, no group dropped for its length under `wait`, and no deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from services.coordinator.books import Books
from services.coordinator.live_groups import LiveGroup, LiveGroups, batch_group, issue_ranges, lowest_floors
from services.coordinator.rules import QueueRules
from sluice.algorithms.dynamic_sampling import drop_reason
from sluice.types import Batch, Drop, DropReason, Floors, Group, Issue, Tally


class FilterQueue:
    """State of one run's queue. A group costs O(log kept) from issue to batch, whatever else is live.

    Only planning a batch looks at all live groups, because its record names them.
    """

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.k = rules.first_step
        """Index of the next batch."""
        self.version = rules.first_step
        """Highest policy version number ever published, also after a trainer's rollback."""
        self.next_n = 0
        self.skipped = 0
        """Draws of the data order that were passed over: the next one is `next_n` + `skipped`."""
        self._live = LiveGroups()
        self.groups_seen = 0
        self.generation_limit = rules.filter.max_generation_batches
        self._rollouts_seen = 0
        self._books = Books()

    # ---------------------------------------------------------------- what people and metrics ask

    @property
    def tally(self) -> Tally:
        """Counts of the run so far: issued = trained (or in a batch) + Σ dropped + live."""
        return self._books.tally

    @property
    def live(self) -> Mapping[int, LiveGroup]:
        """By issue number, in issue order."""
        return self._live.groups

    @property
    def kept(self) -> int:
        return self._live.kept

    @property
    def in_flight(self) -> int:
        return len(self.live) - self.kept

    def in_flight_groups(self) -> Iterator[int]:
        """Issue numbers that have no stored group yet, oldest first."""
        return self._live.in_flight()

    @property
    def capacity(self) -> int:
        """Most groups that may be consumed, kept or in flight at the present policy version."""
        steps = min(self.version + self.rules.max_staleness + 1, self.rules.total_steps)
        return steps * self.rules.batch_size + self.rules.overissue

    @property
    def generation_batches(self) -> int:
        """Generation batches begun for the batch that is being filled."""
        return -(-self._books.issued // self.rules.gen_batch_size)

    @property
    def exhausted(self) -> bool:
        """The data can give no further group."""
        return self.rules.data_limit is not None and self.next_n + self.skipped >= self.rules.data_limit

    @property
    def at_generation_limit(self) -> bool:
        """Every group of the allowed generation batches is settled and the batch is not full: the run pauses."""
        if self.generation_limit is None or self.in_flight or self.kept >= self.rules.batch_size:
            return False
        return self._books.issued >= self.rules.gen_batch_size * self.generation_limit and self._room() > 0

    @property
    def finished(self) -> bool:
        """Nothing is left to issue, to wait for or to train."""
        if self.k >= self.rules.total_steps:
            return True
        remainder_trains = self.kept > 0 and (self.rules.train_last or self._batch_is_full())
        return self.exhausted and self.in_flight == 0 and not remainder_trains

    # ---------------------------------------------------------------- planning

    def plan_issue(self) -> Issue | None:
        """The groups that may be issued now, as the record that must be stored before their prompts are published."""
        room = self._room()
        if self.generation_limit is not None:
            room = min(room, self.rules.gen_batch_size * self.generation_limit - self._books.issued)
        if room <= 0:
            return None
        return Issue(self.next_n, room, self.version, Floors(self.groups_seen, self._rollouts_seen))

    def plan_drop(self) -> Drop | None:
        """Groups that must be given up: one that cannot be read; before the next batch, surplus, or stragglers under
        `drop`."""
        for n, error in self._live.unreadable.items():
            return Drop((n,), DropReason.FAILED, error)
        if not self._batch_is_full():
            return None
        if self.rules.rounds or self.rules.overissue:
            chosen = set(self._live.oldest_kept(self.rules.batch_size))
            surplus = tuple(n for n in self.live if n not in chosen)
            return Drop(surplus, DropReason.SURPLUS) if surplus else None
        if self.rules.drop_stragglers:
            stragglers = tuple(self._infeasible_in_flight())
            return Drop(stragglers, DropReason.STRAGGLER) if stragglers else None
        return None

    def plan_batch(self) -> Batch | None:
        """The next batch, if it is full (or the short last one) and all that is left over can meet its deadline."""
        if self.k >= self.rules.total_steps or not (self._batch_is_full() or self._last_is_short()):
            return None
        return self._batch_record(self._live.oldest_kept(self.rules.batch_size)) if self._feasible() else None

    def plan_end(self, reason: DropReason) -> list[Drop]:
        """Settle everything on record, because the run ends: what is live, and what the filter has dropped."""
        drops = [Drop(tuple(self.live), reason)] if self.live else []
        return drops + list(self._books.unrecorded_drops())

    def plan_recorded(self) -> Drop | None:
        """Drops by the filter that no record names, once there are as many as a batch has groups.

        The next BATCH names them anyhow; this is for those who learn from records and cannot wait for one.
        """
        return next(self._books.unrecorded_drops()) if len(self._books.unrecorded) >= self.rules.batch_size else None

    def _room(self) -> int:
        if self.rules.rounds:
            room = self._room_in_rounds()
        elif self.rules.overissue and (self._batch_is_full() or self.version + self.rules.max_staleness < self.k):
            room = 0  # what is in flight beyond a full batch is surplus, and batch k must not start on older weights
        else:
            room = self.capacity - self.k * self.rules.batch_size - len(self.live)
        if self.rules.data_limit is not None:
            room = min(room, self.rules.data_limit - self.next_n - self.skipped)
        return max(room, 0)

    def _room_in_rounds(self) -> int:
        """A whole generation batch, once the last one is settled, came short, and the weights are those of batch k."""
        waiting = self.in_flight > 0 or self.kept >= self.rules.batch_size
        return 0 if waiting or self.version < self.k or self.k >= self.rules.total_steps else self.rules.gen_batch_size

    def _batch_is_full(self) -> bool:
        if self.rules.rounds and self.in_flight:
            return False
        return self.kept >= self.rules.batch_size

    def _last_is_short(self) -> bool:
        return self.exhausted and self.rules.train_last and self.kept > 0 and self.in_flight == 0

    def _feasible(self) -> bool:
        """Whether what a batch of the oldest kept groups leaves over can meet its deadlines."""
        left = self._live.left_over(self.rules.batch_size)
        due = accumulate(left.values())
        return all(count <= self._seats(version) for version, count in zip(left, due, strict=True))

    def _infeasible_in_flight(self) -> Iterator[int]:
        """In-flight groups, oldest first, whose loss makes what is left over feasible again."""
        left = self._live.left_over(self.rules.batch_size)
        in_flight = deque(self.in_flight_groups())
        due = 0
        for version, count in left.items():
            due += count
            while due > self._seats(version) and in_flight and self.live[in_flight[0]].version <= version:
                yield in_flight.popleft()
                due -= 1

    def _seats(self, version: int) -> int:
        """Places in later batches that groups issued at `version` or before can still take."""
        return max(version + self.rules.max_staleness - self.k, 0) * self.rules.batch_size

    def _batch_record(self, chosen: list[int]) -> Batch:
        taken = set(chosen)
        rest = {n: live for n, live in self.live.items() if n not in taken}
        groups = tuple(batch_group(n, self.live[n]) for n in chosen)
        trained = self.tally.trained + len(groups)
        return Batch(
            k=self.k,
            groups=groups,
            dropped=tuple(self._books.dropped),
            next_n=self.next_n,
            live=tuple(issue_ranges(rest)),
            floors=lowest_floors(rest.values(), Floors(self.groups_seen, self._rollouts_seen)),
            tally=replace(self.tally, trained=trained),
            sampled=self._books.sampled,
            version=self.version,
            groups_seen=self.groups_seen,
            skipped=self.skipped,
        )

    # ---------------------------------------------------------------- what has happened

    def commit(self, record: Issue | Drop | Batch) -> None:
        """Let a stored record happen. Records come in ledger order, each once."""
        match record:
            case Issue(first, count):
                self._live.issue(record)
                self.next_n, self.skipped = first + count, self.skipped + len(record.skipped)
                self._books.issue(count, self.next_n)
            case Drop(groups, reason):
                for n in groups:
                    self._commit_drop(n, reason)
            case Batch():
                self._commit_batch(record)

    def publish(self, version: int) -> None:
        """A policy version was announced; the number never goes down."""
        self.version = max(self.version, version)

    def store(self, sequence: int, group: Group) -> DropReason | None:
        """Fold one GROUPS message, in stream order: the first of an n is the group; of a settled n nothing counts.

        Returns the reason if the group is dropped by its outcomes.
        """
        self.groups_seen = max(self.groups_seen, sequence)
        for rollout in group.rollouts:
            for stored in rollout.sequences:
                self._rollouts_seen = max(self._rollouts_seen, stored)
        live, reason = self.live.get(group.n), drop_reason(group, self.rules.filter)
        if live is None or live.group is not None:
            self._books.count_late(sequence, group, reason)
            return None
        self._books.count(sequence, group, reason)
        if reason is not None:
            self._settle(group.n, reason, recorded=False)
            return reason
        self._live.keep(sequence, group)
        return None

    def store_unreadable(self, sequence: int, n: int, error: str) -> bool:
        """Fold a GROUPS message of group n that cannot be read; whether n is live, and is to be dropped for it.

        Unlike outcomes, which everybody reads, this is settled by a record alone: a newer program may read it.
        """
        self.groups_seen = max(self.groups_seen, sequence)
        live = self.live.get(n)
        if live is None or live.group is not None or n in self._live.unreadable:
            return False
        self._live.unreadable[n] = error
        return True

    @classmethod
    def restore(cls, rules: QueueRules, batch: Batch | None) -> FilterQueue:
        """The queue as it was right after `batch` (None: at the start), before the records and groups that follow."""
        queue = cls(rules)
        if batch is None:
            return queue
        queue.k, queue.version, queue.next_n, queue._books = batch.k + 1, batch.version, batch.next_n, Books(batch)
        queue.groups_seen, queue._rollouts_seen = batch.floors.groups, batch.floors.rollouts
        queue.skipped = batch.skipped
        for issue in batch.live:
            queue._live.issue(issue)
        return queue

    def _commit_batch(self, batch: Batch) -> None:
        for entry in batch.groups:
            self._live.leave(entry.n)
        self.k, self._books = batch.k + 1, Books(batch)

    def _commit_drop(self, n: int, reason: DropReason) -> None:
        if reason is DropReason.SKIPPED_BATCH:
            self._books.skip(n)
            return
        if self._books.unrecorded.pop(n, None) is not None:
            return  # the filter had dropped it; now a record says so
        if self.live[n].group is None:
            self._books.expect_late(n)
        self._settle(n, reason, recorded=True)

    def _settle(self, n: int, reason: DropReason, recorded: bool) -> None:
        self._live.leave(n)
        self._books.drop(n, reason, recorded)
