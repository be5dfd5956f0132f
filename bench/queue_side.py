"""The filter queue alone, as `coordinator_bench.py` measures it: the coordinator's decisions without its messages."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from services.coordinator.filter_queue import FilterQueue
from services.coordinator.rules import QueueRules
from sluice.types import (
    Batch,
    FinishReason,
    Group,
    GroupStatus,
    Issue,
    PolicyVersion,
    RolloutSummary,
    VerdictKind,
)

KEEP_RATE = 0.5
NANOSECONDS = 1e9
NO_END = 1 << 40


class InFlight:
    """Issue numbers in flight, drawn at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, issue: Issue) -> None:
        self._numbers += range(issue.first, issue.first + issue.count)

    def draw(self) -> int:
        """One of them, which is no longer in flight then."""
        at = self._rng.randrange(len(self._numbers))
        self._numbers[at], self._numbers[-1] = self._numbers[-1], self._numbers[at]
        return self._numbers.pop()


def draw_outcomes(rng: random.Random, group_size: int) -> tuple[float, ...]:
    """Mixed at KEEP_RATE, else all correct or all wrong."""
    if rng.random() < KEEP_RATE:
        return (1.0,) + (0.0,) * (group_size - 1)
    return (float(rng.random() < 0.5),) * group_size


def stored_group(run_id: str, n: int, version: int, outcomes: tuple[float, ...]) -> Group:
    """Group n as a worker stores it, sampled from policy version number `version`."""
    policy = PolicyVersion(version, 1)
    rollouts = tuple(
        RolloutSummary(
            sequences=(n * len(outcomes) + i + 1,),
            content_hash=bytes(16),
            verdict=VerdictKind.SCORED,
            acc=acc,
            score=acc,
            shaping=0.0,
            length=100,
            finish_reason=FinishReason.STOP,
            oldest_version=policy,
            newest_version=policy,
        )
        for i, acc in enumerate(outcomes)
    )
    return Group(run_id, n, "bench", GroupStatus.SCORED, rollouts, "bench", "bench", version, 1.0, 0.1)


def least_queue_seconds(live: int, staleness: int, group_size: int, groups: int, plays: int) -> list[float]:
    """`queue_seconds`, of each group the least of several plays, which are all the same.

    A group that cost more in one play than in another was interrupted, and found its memory cold when it went on: that
    is what the machine's other work costs, and not the queue.
    """
    played = [queue_seconds(live, staleness, group_size, groups) for _ in range(plays)]
    return [min(costs) for costs in zip(*map(list, played), strict=True)]


def queue_seconds(live: int, staleness: int, group_size: int, groups: int) -> Iterator[float]:
    """CPU-seconds of the queue for each of `groups` groups: from its arrival to the last decision that follows from it.

    The queue holds `live` groups: the batch is `live / (staleness + 1)`. The trainer is done with a batch at once, so
    capacity is always used; groups arrive in random order.
    """
    rng = random.Random(live)
    queue = FilterQueue(QueueRules(live // (staleness + 1), staleness, total_steps=NO_END))
    in_flight = InFlight(rng)
    _decide(queue, in_flight)
    for sequence in range(1, groups + 1):
        n = in_flight.draw()
        group = stored_group("bench", n, queue.live[n].version, draw_outcomes(rng, group_size))
        begin = time.thread_time_ns()
        queue.store(sequence, group)
        _decide(queue, in_flight)
        yield (time.thread_time_ns() - begin) / NANOSECONDS


def _decide(queue: FilterQueue, in_flight: InFlight) -> None:
    """All that the coordinator's loop decides now."""
    while record := queue.plan_issue() or queue.plan_drop() or queue.plan_batch():
        queue.commit(record)
        match record:
            case Issue():
                in_flight.add(record)
            case Batch():
                queue.publish(queue.k)
