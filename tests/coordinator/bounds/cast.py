"""Who acts on the streams of a run: coordinators with the real logic, and workers and a trainer of a few lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import patch

import structlog
from prometheus_client import CollectorRegistry

from services.coordinator import run as run_module
from services.coordinator.board import StatusBoard
from services.coordinator.history import RunHistory
from services.coordinator.loop import OfferingRests, Stored, advance, hear
from services.coordinator.metrics import CoordinatorMetrics
from services.coordinator.prompt_source import PromptSource
from services.coordinator.run import Run
from services.coordinator.written import Written
from sluice.telemetry import Logger
from sluice.transport.groups import UnreadableGroup
from sluice.transport.log import FencedLog
from sluice.transport.nats import Bus
from sluice.types import (
    Checkpoint,
    DropReason,
    FinishReason,
    Group,
    GroupStatus,
    LedgerRecord,
    Lineage,
    PolicyVersion,
    RolloutSummary,
    RunState,
    StateChange,
    VerdictKind,
    Version,
)
from tests.coordinator.bounds import streams as memory
from tests.coordinator.bounds.streams import Connection, Message, Streams

RUN = "run"
SILENT = cast(
    Logger, structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
)
METRICS = CoordinatorMetrics(CollectorRegistry())


_loaded: dict[tuple[str, ...], PromptSource] = {}
_load = PromptSource.load


async def _load_once(history: RunHistory, _: object = None) -> PromptSource:
    """The run's own data set, read from its files the first time that a coordinator asks for it."""
    files = history.spec.data.train_files
    if files not in _loaded:
        _loaded[files] = await _load(history)
    return _loaded[files]


@contextmanager
def in_memory() -> Iterator[None]:
    """Coordinators made inside work on `Connection`s instead of a bus."""
    names = ("trainer_log", "Offering", "pending_prompts", "delete_prompts", "stored_groups")
    functions: dict[str, Any] = {name: getattr(memory, name) for name in names}
    functions |= dict.fromkeys(("publish_event", "announce"), memory.nothing_to_tell)
    with patch.multiple(run_module, **functions), patch.object(PromptSource, "load", _load_once):
        yield


class Board:
    """Where nobody looks."""

    async def show(self, *_: object) -> None:
        return


class Ledgers(Written):
    """In memory, where a record stays what it is."""

    def log(self, bus: Bus, run_id: str) -> FencedLog[LedgerRecord]:
        return cast(FencedLog[LedgerRecord], memory.ledger_log(cast(Connection, bus), run_id))


class Coordinator:
    """One process that holds the run, or believes so. GROUPS and TRAINER reach it each in order, and no other order."""

    def __init__(self, streams: Streams) -> None:
        self.connection = Connection(streams)
        self.run = Run(cast(Bus, self.connection), RUN, cast(StatusBoard, Board()), SILENT, METRICS, Ledgers())
        self.heard = 0
        """GROUPS sequence."""

    @property
    def streams(self) -> Streams:
        return self.connection.streams

    async def rebuild(self, name: str) -> None:
        """As the service does when it has the lease."""
        await self.run.claim(name)
        await self.run.rebuild()
        self.heard = self.run.queue.groups_seen

    async def take_over(self, name: str) -> None:
        """Rebuild, and do all that can be done before anything is heard."""
        await self.rebuild(name)
        METRICS.begin(self.run.history)
        await advance(self.run)

    async def hear_groups(self, most: int) -> bool:
        """The next GROUPS messages, at most so many, and only then what follows from them; False if there is none."""
        unheard = [Stored(sequence, group) for sequence, group in self.streams.groups if sequence > self.heard][:most]
        if not unheard or self.run.history.state.terminal:
            return False
        self.heard = unheard[-1].sequence
        for stored in unheard:
            await hear(self.run, stored)
        await advance(self.run)
        return True

    async def hear_trainer(self) -> bool:
        """The next TRAINER record; False if there is none."""
        unheard = [entry for entry in self.streams.trainer if entry.sequence > self.run.trainer_read]
        if not unheard or self.run.history.state.terminal:
            return False
        await self.hear(unheard[0])
        return True

    async def offer(self, most: int) -> bool:
        """Prompts that are issued get into PROMPTS, at most so many; False if there is none."""
        offering = cast(memory.Offering, self.run.offering)
        if offering.unoffered is None or self.run.history.state.terminal:
            return False
        if offering.offer(most):
            await self.hear(OfferingRests())
        return True

    async def hear(self, news: Any) -> None:
        """As the loop does, until the run has ended."""
        if not self.run.history.state.terminal:
            await hear(self.run, news)
            await advance(self.run)

    async def catch_up(self) -> None:
        while await self.offer(64) or await self.hear_groups(1) or await self.hear_trainer():
            pass

    async def successor(self) -> Run:
        """Who reads the records that this one has read so far, and no other."""
        last = self.run._ledger.last
        other = Coordinator(self.streams.as_of(last, self.run.trainer_read, self.heard))
        await other.rebuild("shadow")
        return other.run


@dataclass(eq=False)
class Attempt:
    """A worker at work on a prompt: its rollouts are stored before its group is."""

    message: Message
    group: Group


@dataclass
class Workers:
    """All workers of the run together."""

    streams: Streams
    attempts: list[Attempt] = field(default_factory=list)
    begun: int = 0

    def offered(self, twice: bool = False) -> list[Message]:
        """Prompts that nobody works on; with `twice` those that somebody does, who has fallen silent."""
        busy = {id(attempt.message) for attempt in self.attempts}
        return [message for message in self.streams.prompts if (id(message) in busy) == twice]

    def generate(self, message: Message, ahead: int, accs: tuple[float, ...] | GroupStatus) -> None:
        """Roll out from a version that the prompt may see, `ahead` of the least one, and store what is needed."""
        versions = sorted({v.number for v in self.streams.published() if v.number >= message.min_version})
        version = PolicyVersion(versions[min(ahead, len(versions) - 1)], 1)
        self.begun += 1
        status = accs if isinstance(accs, GroupStatus) else GroupStatus.SCORED
        values = () if isinstance(accs, GroupStatus) else accs
        stored = self.streams.add_rollouts(len(values) if len(set(values)) > 1 else 0)
        sequences: list[tuple[int, ...]] = [(sequence,) for sequence in stored] or [() for _ in values]
        rollouts = tuple(
            RolloutSummary(at, b"", VerdictKind.SCORED, acc, acc, 0.0, 3, FinishReason.STOP, version, version)
            for acc, at in zip(values, sequences, strict=True)
        )
        name, least = f"attempt-{self.begun}", message.min_version
        self.attempts.append(Attempt(message, Group(RUN, message.n, name, status, rollouts, "w", "e", least, 1.0, 0.1)))

    def commit(self, attempt: Attempt, acked: bool, readable: bool = True) -> None:
        """Store the group, or lose to another attempt; then ack, unless the worker dies before."""
        self.attempts.remove(attempt)
        self.streams.add_group(attempt.group if readable else UnreadableGroup(attempt.group.n, "of another format"))
        if acked:
            self.streams.settle(attempt.message)


@dataclass
class Trainer:
    """Consumes batches as LEDGER says, and purges as the contract says."""

    streams: Streams
    k: int = 0
    lineage: int = 0
    checkpoints: list[int] = field(default_factory=list)
    """Batches in each checkpoint that is whole; the trainer began with the last of them that is not newer than it."""
    may_be_damaged: bool = False
    """A checkpoint was made since one was found damaged: the one before it is still of use."""

    def start(self) -> None:
        self.lineage += 1
        self.k = self.checkpoints[-1] if self.checkpoints else 0
        self.streams.add_trainer(Lineage(self.lineage, "t", self.k))
        self._publish()

    def restart(self, damaged: bool) -> None:
        """Back to the newest whole checkpoint, the one before if the newest turns out to be damaged."""
        if damaged and self.may_be_damaged and len(self.checkpoints) > 1:
            self.checkpoints.pop()
            self.may_be_damaged = False
        self.start()

    def train(self) -> bool:
        """The next batch, if there is one; every rollout of it must still be there, and be young enough."""
        if self.k >= len(self.streams.truth.batches):
            return False
        batch = self.streams.truth.batches[self.k]
        for entry in batch.groups:
            for rollout in entry.rollouts:
                staleness = batch.k - rollout.oldest_version.number
                assert staleness <= self.streams.truth.bounds.max_staleness, f"group {entry.n}: staleness {staleness}"
                assert min(rollout.sequences) > self.streams.purged_rollouts, f"group {entry.n} is purged"
        self.k += 1
        self._publish()
        return True

    def checkpoint(self) -> None:
        """Store one, then purge up to the floors that the one before it needs."""
        before = self.checkpoints[-1] if self.checkpoints else 0
        self.streams.add_trainer(Checkpoint(self.k, self.lineage, "/", "", ""))
        if before:
            self.streams.purge(self.streams.truth.batches[before - 1].floors)
        self.checkpoints.append(self.k)
        self.may_be_damaged = True

    def _publish(self) -> None:
        self.streams.add_trainer(Version(PolicyVersion(self.k, self.lineage), "file:///", "", ""))


def wants_checkpoint(streams: Streams) -> bool:
    """The run is stopping: its trainer saves what it has."""
    changes = [entry.record for entry in streams.ledger if isinstance(entry.record, StateChange)]
    return bool(changes) and changes[-1].state is RunState.STOPPING


def state_of(run: Run) -> dict[str, object]:
    """All that decides what a run does next. Drops of one batch have no order among them."""
    queue, history = run.queue, run.history
    batch = queue.plan_batch()
    decided = {name: getattr(queue, name) for name in ("k", "version", "next_n", "groups_seen", "generation_limit")}
    told = ("state", "reason", "ends_as", "version_number", "lineages", "restarts", "checkpointed", "training_failed")
    return {
        **decided,
        **{name: getattr(history, name) for name in told},
        "live": dict(queue.live),
        "kept": queue.kept,
        "tally": queue.tally,
        "generation_batches": queue.generation_batches,
        "at_limit": queue.at_generation_limit,
        "finished": queue.finished,
        "issue": queue.plan_issue(),
        "drop": queue.plan_drop(),
        "batch": batch and replace(batch, dropped=tuple(sorted(batch.dropped))),
        "end": {(n, drop.reason) for drop in queue.plan_end(DropReason.RUN_ENDED) for n in drop.groups},
        "trained_in": [history.fates.batch_of(n) for n in range(history.next_n)],
    }
