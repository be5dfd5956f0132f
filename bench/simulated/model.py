"""What the rules of scheduling alone allow: a run played in virtual time, in which nothing costs anything but modelled
generation and training.

The filter queue is the service's own class. Prompts draw the same seconds and the same outcomes as in the simulated
engine, so the measured run and its model differ by what the services cost, and by nothing else.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from bench.simulated.latency import parse_latency, sample_seconds
from bench.simulated.responses import outcomes
from bench.simulated.stack import Simulation
from services.coordinator.filter_queue import FilterQueue
from services.coordinator.rules import QueueRules
from sluice.config import RunSpec
from sluice.data import seed_of
from sluice.types import Batch, FinishReason, Group, GroupStatus, Issue, PolicyVersion, RolloutSummary, VerdictKind


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run as the rules allow it: seconds from the first prompt to the last trained batch."""

    seconds: float
    batches: int


@dataclass(slots=True)
class _World:
    spec: RunSpec
    simulation: Simulation
    queue: FilterQueue
    now: float = 0.0
    events: list[tuple[float, int, int]] = field(default_factory=list)
    """(when, tie breaker, issue number; -1: the trainer is done with a batch)."""
    order: count[int] = field(default_factory=count)
    waiting: deque[int] = field(default_factory=deque)
    running: int = 0
    batches: deque[int] = field(default_factory=deque)
    training: bool = False
    stored: int = 0


def play(spec: RunSpec, simulation: Simulation) -> Outcome:
    """Play the run to the end of its last batch."""
    world = _World(spec, simulation, FilterQueue(QueueRules.of(spec, data_size=1 << 40)))
    trained = 0
    _decide(world)
    while world.events:
        world.now, _, n = heapq.heappop(world.events)
        if n >= 0:
            _finish_group(world, n)
        else:
            trained += 1
            world.training = False
            world.queue.publish(trained)
            if trained == spec.trainer.total_steps:
                break
        _decide(world)
    return Outcome(world.now, trained)


def _decide(world: _World) -> None:
    """All that the coordinator, the engine and the trainer begin now."""
    queue = world.queue
    while record := queue.plan_issue() or queue.plan_drop() or queue.plan_batch():
        queue.commit(record)
        match record:
            case Issue(first, number):
                world.waiting.extend(range(first, first + number))
            case Batch(k):
                world.batches.append(k)
    room = world.simulation.concurrency or 1 << 40
    while world.waiting and world.running < room:
        n = world.waiting.popleft()
        world.running += 1
        _at(world, _generation_seconds(world, n), n)
    if world.batches and not world.training:
        k = world.batches.popleft()
        world.training = True
        _at(world, parse_latency(world.simulation.train)(random.Random(f"train/{k}")), -1)


def _at(world: _World, seconds: float, n: int) -> None:
    heapq.heappush(world.events, (world.now + seconds, next(world.order), n))


def _generation_seconds(world: _World, n: int) -> float:
    latency, seed = parse_latency(world.simulation.latency), seed_of(world.spec.trainer.seed, n)
    return max(sample_seconds(latency, seed, i) for i in range(world.spec.rollout.group_size))


def _finish_group(world: _World, n: int) -> None:
    world.running -= 1
    world.stored += 1
    size = world.spec.rollout.group_size
    rights = outcomes(seed_of(world.spec.trainer.seed, n), world.simulation.keep_rate, size)
    version = PolicyVersion(world.queue.live[n].version, 1)
    rollouts = tuple(
        RolloutSummary((), b"", VerdictKind.SCORED, float(r), float(r), 0.0, 1, FinishReason.STOP, version, version)
        for r in rights
    )
    group = Group(world.spec.name, n, "model", GroupStatus.SCORED, rollouts, "", "", version.number, 0.0, 0.0)
    world.queue.store(world.stored, group)
