"""What a run can rely on from dynamic sampling, under random schedules, failures and restarts."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.coordinator.filter_queue import FilterQueue
from services.coordinator.rules import QueueRules
from sluice.config import FilterConfig
from sluice.types import (
    Batch,
    Drop,
    DropReason,
    FinishReason,
    Group,
    GroupStatus,
    Issue,
    PolicyVersion,
    RolloutSummary,
    VerdictKind,
)


def summary(acc: float, version: int = 0, sequence: int = 0, length: int = 3) -> RolloutSummary:
    policy = PolicyVersion(version, 1)
    return RolloutSummary(
        (sequence,) if sequence else (),
        b"",
        VerdictKind.SCORED,
        acc,
        acc,
        0.0,
        length,
        FinishReason.STOP,
        policy,
        policy,
    )


def group(n: int, accs: tuple[float, ...], version: int = 0, sequence: int = 0) -> Group:
    rollouts = tuple(summary(acc, version, sequence) for acc in accs)
    return Group("run", n, "attempt", GroupStatus.SCORED, rollouts, "w", "e", version, 1.0, 0.1)


MIXED, RIGHT, WRONG = (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)


@dataclass
class World:
    """The services around the queue, reduced to what it can see: a ledger, GROUPS in stream order, a trainer."""

    rules: QueueRules
    rng: random.Random
    keep: float
    ledger: list[Issue | Drop | Batch] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    running: dict[int, int] = field(default_factory=dict)
    trained: int = 0
    queue: FilterQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = FilterQueue(self.rules)

    def append(self, record: Issue | Drop | Batch) -> None:
        self.ledger.append(record)
        self.queue.commit(record)
        if isinstance(record, Issue):
            self.running |= dict.fromkeys(range(record.first, record.first + record.count), record.version)

    def settle(self) -> None:
        """All that the coordinator can do now."""
        while True:
            record = self.queue.plan_issue() or self.queue.plan_drop() or self.queue.plan_batch()
            if record is None:
                return
            self.append(record)
            self.check()

    def finish_group(self) -> None:
        n = self.rng.choice(sorted(self.running))
        version = self.running.pop(n)
        accs = MIXED if self.rng.random() < self.keep else self.rng.choice([RIGHT, WRONG])
        made = group(n, accs, version, sequence=len(self.groups) + 1)
        self.groups.append(made)
        self.queue.store(len(self.groups), made)

    def restart(self) -> None:
        """A fresh coordinator reads LEDGER from the last BATCH on, then GROUPS above its floor."""
        before = self.queue
        last = max((i for i, r in enumerate(self.ledger) if isinstance(r, Batch)), default=None)
        base = self.ledger[last] if last is not None else None
        assert base is None or isinstance(base, Batch)
        self.queue = FilterQueue.restore(self.rules, base)
        for record in self.ledger[0 if last is None else last + 1 :]:
            self.queue.commit(record)
        for sequence, made in enumerate(self.groups, start=1):
            if base is None or sequence > base.floors.groups:
                self.queue.store(sequence, made)
        self.queue.publish(before.version)
        assert (self.queue.k, self.queue.next_n, list(self.queue.live)) == (before.k, before.next_n, list(before.live))
        assert self.queue.tally == before.tally
        assert self.queue.plan_batch() == before.plan_batch()
        assert self.queue.plan_issue() == before.plan_issue()

    def check(self) -> None:
        queue, rules = self.queue, self.rules
        assert queue.tally.issued == queue.tally.trained + sum(queue.tally.dropped.values()) + len(queue.live)
        if not rules.rounds:
            assert queue.k * rules.batch_size + len(queue.live) <= queue.capacity

    def batches(self) -> list[Batch]:
        return [record for record in self.ledger if isinstance(record, Batch)]


def play(world: World, restarts: bool) -> None:
    """Drive the world to its end at random; a world that can no longer move has deadlocked."""
    world.settle()
    while not world.queue.finished:
        moves = [world.finish_group] * bool(world.running)
        if world.trained < world.queue.k:
            moves.append(lambda: train(world))
        assert moves, f"deadlock: k={world.queue.k} kept={world.queue.kept} in flight={world.queue.in_flight}"
        world.rng.choice(moves)()
        if restarts and world.rng.random() < 0.05:
            world.restart()
        world.settle()


def train(world: World) -> None:
    """The trainer publishes the next version; sometimes it has fallen back, and announces lower numbers again."""
    world.trained += 1
    world.queue.publish(world.trained)
    if world.rng.random() < 0.1:
        world.trained = max(world.trained - 2, 0)


SCHEDULES = {
    "seed": st.integers(0, 2**32),
    "batch_size": st.integers(1, 5),
    "staleness": st.integers(0, 4),
    "keep": st.sampled_from([1.0, 0.7, 0.3]),
}


@settings(max_examples=150, deadline=None)
@given(**SCHEDULES)
def test_no_group_is_trained_staler_than_the_bound_and_nothing_deadlocks(
    seed: int, batch_size: int, staleness: int, keep: float
) -> None:
    rules = QueueRules(batch_size, staleness, total_steps=20)
    world = World(rules, random.Random(seed), keep)
    play(world, restarts=True)
    batches = world.batches()
    assert [batch.k for batch in batches] == list(range(20))
    for batch in batches:
        assert len(batch.groups) == batch_size
        assert max(batch.k - entry.version for entry in batch.groups) <= staleness
    trained = [entry.n for batch in batches for entry in batch.groups]
    assert len(set(trained)) == len(trained)
    lengths = {DropReason.STRAGGLER, DropReason.SURPLUS}
    assert not lengths & set(world.queue.tally.dropped), "under `wait` no group is dropped for its length"


@settings(max_examples=80, deadline=None)
@given(**SCHEDULES)
def test_dropping_stragglers_never_waits_for_a_group_in_flight_once_the_batch_is_full(
    seed: int, batch_size: int, staleness: int, keep: float
) -> None:
    world = World(QueueRules(batch_size, staleness, 12, drop_stragglers=True), random.Random(seed), keep)
    world.settle()
    while not world.queue.finished:
        assert world.queue.kept < batch_size
        moves = [world.finish_group] * bool(world.running)
        if world.trained < world.queue.k:
            moves.append(lambda: train(world))
        world.rng.choice(moves)()
        world.settle()
    assert max(b.k - e.version for b in world.batches() for e in b.groups) <= staleness


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), batch_size=st.integers(1, 4), gen=st.integers(1, 9), keep=st.sampled_from([1.0, 0.4])
)
def test_rounds_select_in_data_order_and_call_the_rest_surplus(
    seed: int, batch_size: int, gen: int, keep: float
) -> None:
    rule = FilterConfig(mode="rounds", gen_batch_size=gen)
    world = World(QueueRules(batch_size, 0, 8, filter=rule), random.Random(seed), keep)
    play(world, restarts=True)
    kept_at = {g.n for g in world.groups if g.rollouts[0].acc != g.rollouts[1].acc}
    for batch in world.batches():
        chosen = [entry.n for entry in batch.groups]
        first = min(chosen)
        assert chosen == sorted(chosen)
        assert chosen == [n for n in sorted(kept_at) if n >= first][:batch_size]
        assert all(entry.version == batch.k for entry in batch.groups)
    assert all(issue.count == gen for issue in world.ledger if isinstance(issue, Issue))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), batch_size=st.integers(1, 4), extra=st.integers(1, 5), keep=st.sampled_from([1.0, 0.4])
)
def test_overissued_prompts_shorten_the_tail_stay_on_policy_and_end_as_surplus(
    seed: int, batch_size: int, extra: int, keep: float
) -> None:
    world = World(QueueRules(batch_size, 0, 8, overissue=extra), random.Random(seed), keep)
    play(world, restarts=True)
    assert [batch.k for batch in world.batches()] == list(range(8))
    assert all(entry.version == batch.k for batch in world.batches() for entry in batch.groups)
    assert set(world.queue.tally.dropped) <= {DropReason.ALL_CORRECT, DropReason.ALL_WRONG, DropReason.SURPLUS}


def test_a_dropped_group_is_refilled_one_for_one_at_once() -> None:
    queue = FilterQueue(QueueRules(2, 0, 5))
    first = queue.plan_issue()
    assert first is not None and first.count == 2
    queue.commit(first)
    assert queue.plan_issue() is None
    assert queue.store(1, group(0, RIGHT)) is DropReason.ALL_CORRECT
    refill = queue.plan_issue()
    assert refill is not None and (refill.first, refill.count) == (2, 1)


def test_nothing_is_issued_while_the_trainer_holds_the_batch_when_on_policy() -> None:
    queue = FilterQueue(QueueRules(1, 0, 5))
    first = queue.plan_issue()
    assert first is not None
    queue.commit(first)
    queue.store(1, group(0, MIXED))
    batch = queue.plan_batch()
    assert batch is not None
    queue.commit(batch)
    assert queue.plan_issue() is None
    queue.publish(1)
    issue = queue.plan_issue()
    assert issue is not None and issue.version == 1


def test_the_generation_limit_stops_issuing_and_says_so_instead_of_ending_the_run() -> None:
    queue = FilterQueue(QueueRules(2, 1, 5, filter=FilterConfig(gen_batch_size=2, max_generation_batches=2)))
    issued = 0
    while (issue := queue.plan_issue()) is not None:
        queue.commit(issue)
        for n in range(issue.first, issue.first + issue.count):
            issued += 1
            queue.store(issued, group(n, WRONG))
    assert issued == 4 and queue.at_generation_limit
    queue.generation_limit = 3
    assert queue.plan_issue() is not None


@pytest.mark.parametrize(("train_last", "sizes"), [(True, [2, 2, 1]), (False, [2, 2])])
def test_the_remainder_of_exhausted_data_trains_as_a_short_batch_or_is_dropped(
    train_last: bool, sizes: list[int]
) -> None:
    world = World(QueueRules(2, 1, 9, train_last=train_last, data_limit=5), random.Random(1), keep=1.0)
    play(world, restarts=False)
    assert [len(batch.groups) for batch in world.batches()] == sizes
    left = [drop for drop in world.queue.plan_end(DropReason.RUN_ENDED) if drop.reason is DropReason.RUN_ENDED]
    assert bool(left) == (not train_last)


@settings(max_examples=40, deadline=None)
@given(**SCHEDULES)
def test_when_a_run_ends_early_every_group_is_settled_on_record(
    seed: int, batch_size: int, staleness: int, keep: float
) -> None:
    world = World(QueueRules(batch_size, staleness, 50), random.Random(seed), keep)
    world.settle()
    for _ in range(world.rng.randrange(60)):
        if world.running:
            world.finish_group()
        world.settle()
    for drop in world.queue.plan_end(DropReason.CANCELLED):
        world.append(drop)
    recorded = [n for record in world.ledger if isinstance(record, Drop) for n in record.groups]
    recorded += [n for batch in world.batches() for n, _ in batch.dropped]
    recorded += [entry.n for batch in world.batches() for entry in batch.groups]
    assert sorted(recorded) == list(range(world.queue.next_n))
    world.restart()


def test_equal_fractional_outcomes_are_uniform_although_their_deviation_rounds_above_zero() -> None:
    queue = FilterQueue(QueueRules(1, 0, 1))
    issue = queue.plan_issue()
    assert issue is not None
    queue.commit(issue)
    assert queue.store(1, group(0, (0.1, 0.1, 0.1))) is DropReason.UNIFORM


def test_a_verifier_failure_drops_the_group_and_is_never_a_reward() -> None:
    queue = FilterQueue(QueueRules(1, 0, 1))
    issue = queue.plan_issue()
    assert issue is not None
    queue.commit(issue)
    failed = Group("run", 0, "a", GroupStatus.VERIFIER_FAILED, (summary(0.0),), "w", "e", 0, 1.0, 0.1)
    assert queue.store(1, failed) is DropReason.VERIFIER_FAILED
    assert queue.tally.scored_groups == 0


def test_a_group_settled_before_the_last_batch_stays_settled_however_late_it_arrives() -> None:
    queue = FilterQueue(QueueRules(1, 1, 5))
    issue = queue.plan_issue()
    assert issue is not None
    queue.commit(issue)
    queue.store(1, group(0, MIXED))
    batch = queue.plan_batch()
    assert batch is not None
    queue.commit(batch)
    before = (queue.tally, list(queue.live), queue.kept)
    queue.store(2, group(0, MIXED))
    assert (queue.tally, list(queue.live), queue.kept) == before


def blocked_seconds(batch_size: int) -> float:
    """Median CPU of a group that arrives while a full batch waits for one straggler of a batch of this size."""
    queue = FilterQueue(QueueRules(batch_size, 1, total_steps=100))
    first = queue.plan_issue()
    assert first is not None
    queue.commit(first)
    for n in range(1, first.count):
        queue.store(n, group(n, MIXED))
    batch = queue.plan_batch()
    assert batch is not None
    queue.commit(batch)
    queue.publish(1)
    second = queue.plan_issue()
    assert second is not None
    queue.commit(second)
    seconds = []
    for n in range(second.first, second.first + 100):
        begin = time.thread_time()
        queue.store(n, group(n, MIXED))
        assert queue.plan_issue() is None
        assert queue.plan_batch() is None, "group 0 is due in this batch and still in flight"
        seconds.append(time.thread_time() - begin)
    return statistics.median(seconds)


def test_a_straggler_makes_no_group_dearer_however_many_wait_with_it() -> None:
    assert blocked_seconds(4000) < 5 * blocked_seconds(100)
