"""A run played out in memory by the coordinator's real queue with simulated workers and trainer, then written to NATS.

Everything that a run stores stands here in plain lists, so that a test can plant one fault before it is written.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.coordinator.filter_queue import FilterQueue
from services.coordinator.rules import QueueRules
from sluice.config import RunSpec, parse_run_spec
from sluice.packed import LogProbs, TokenIds
from sluice.transport.nats import Bus
from sluice.types import (
    Batch,
    Checkpoint,
    Claim,
    Drop,
    DropReason,
    FinishReason,
    Floors,
    Group,
    GroupStatus,
    Issue,
    LedgerRecord,
    Lineage,
    PolicyVersion,
    Prompt,
    Rollout,
    RolloutSummary,
    RunCreated,
    RunState,
    Sampling,
    StateChange,
    TrainerRecord,
    VerdictKind,
    Version,
    VersionSpan,
)
from sluice.wire import subjects
from sluice.wire.codec import encode_group, encode_prompt, encode_rollout
from sluice.wire.payload import content_hash, pack
from sluice.wire.records import encode_ledger, encode_trainer


def make_spec(**sections: dict[str, Any]) -> RunSpec:
    """Four steps of three groups of two, one version of staleness; keywords add fields to sections."""
    base: dict[str, dict[str, Any]] = {
        "model": {"path": "model"},
        "data": {"train_files": ["rows.jsonl"]},
        "rollout": {"group_size": 2, "max_response_length": 8},
        "trainer": {"total_steps": 4, "prompts_per_step": 3},
        "checkpoint": {"interval": 1},
    }
    for name, fields in sections.items():
        base[name] = base.get(name, {}) | fields
    return parse_run_spec(base)


@dataclass
class World:
    """One run. `groups` and `rollouts` map stream sequence to what is stored there; deleting a key purges it."""

    run_id: str
    spec: RunSpec = field(default_factory=make_spec)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    first_group: int = 1
    first_rollout: int = 1
    packed: bool = False
    """Whether the rollouts of an attempt share a message, as workers store them; in older releases each had its own."""

    def __post_init__(self) -> None:
        self.queue = FilterQueue(QueueRules.of(self.spec, 1000))
        self.ledger: list[LedgerRecord] = [
            RunCreated(self.run_id, self.spec.canonical_json, self.spec.config_hash),
            Claim("coordinator-1"),
        ]
        self.trainer: list[TrainerRecord] = []
        self.prompts: set[int] = set()
        self.groups: dict[int, Group] = {}
        self.rollouts: dict[int, bytes] = {}
        self.next_group, self.next_rollout = self.first_group, self.first_rollout
        self.chain = [hashlib.blake2b(self.spec.config_hash.encode(), digest_size=32).digest()]
        self.lineage = self.steps = 0
        self.batches: list[Batch] = []

    # ---------------------------------------------------------------- the coordinator

    def record(self, record: LedgerRecord) -> None:
        self.ledger.append(record)
        match record:
            case Issue(first, count):
                self.queue.commit(record)
                self.prompts |= set(range(first, first + count))
            case Batch():
                self.queue.commit(record)
                self.batches.append(record)
                self.chain.append(advance(self.chain[-1], record))
            case Drop():
                self.queue.commit(record)

    def coordinate(self) -> None:
        """Everything that can be decided now; a full batch leaves before its freed slots are refilled."""
        while not self.queue.finished:
            plan = self.queue.plan_drop() or self.queue.plan_batch() or self.queue.plan_issue()
            if plan is None:
                return
            self.record(plan)

    def take_over(self) -> None:
        """The coordinator dies; its successor rebuilds the queue from the ledger and the stored groups."""
        self.ledger.append(Claim("coordinator-2"))
        last = max((i for i, r in enumerate(self.ledger) if isinstance(r, Batch)), default=-1)
        self.queue = FilterQueue.restore(self.queue.rules, self.batches[-1] if self.batches else None)
        for record in self.ledger[last + 1 :]:
            if isinstance(record, Issue | Drop):
                self.queue.commit(record)
        self.queue.publish(self.steps)
        for sequence, group in self.groups.items():
            if sequence > self.queue.groups_seen:
                self.queue.store(sequence, group)

    def end(self) -> None:
        """Settle what is left, train it, and succeed."""
        for drop in self.queue.plan_end(DropReason.RUN_ENDED):
            self.record(drop)
        self.prompts.clear()
        self.record(StateChange(RunState.STOPPING, "all training steps have their batch"))
        while self.steps < len(self.batches):
            self.train()
        self.record(StateChange(RunState.SUCCEEDED, "done"))

    # ---------------------------------------------------------------- a worker

    def work(self, n: int, correct: list[bool] | None = None) -> None:
        """Sample, score and commit group `n`; now and then after an attempt that died."""
        if self.random.random() < 0.2:
            self.store_rollout(self.make_rollout(n, "died", 0))
        mixed = self.random.random() < 0.7
        drawn = [i == 0 for i in range(2)] if mixed else [self.random.random() < 0.5] * 2
        self.commit(self.make_group(n, f"attempt-{n}", correct or drawn))

    def make_group(self, n: int, attempt: str, correct: list[bool]) -> Group:
        skip = len(set(correct)) == 1
        rollouts = tuple(self.store_scored(n, attempt, i, ok, skip) for i, ok in enumerate(correct))
        if self.packed and not skip:
            rollouts = self.pack(rollouts)
        version = self.issue_version(n)
        return Group(self.run_id, n, attempt, GroupStatus.SCORED, rollouts, "worker", "engine", version, 1.0, 0.1)

    def store_scored(self, n: int, attempt: str, i: int, ok: bool, skip: bool) -> RolloutSummary:
        rollout = self.make_rollout(n, attempt, i)
        stored = () if skip else (self.store_rollout(rollout),)
        versions = [span.version for span in rollout.spans]
        return RolloutSummary(
            sequences=stored,
            content_hash=b"" if skip else content_hash(encode_rollout(rollout)),
            verdict=VerdictKind.SCORED,
            acc=float(ok),
            score=1.0 if ok else -1.0,
            shaping=0.0,
            length=len(rollout.token_ids),
            finish_reason=rollout.finish_reason,
            oldest_version=min(versions),
            newest_version=max(versions),
        )

    def pack(self, apart: Sequence[RolloutSummary]) -> tuple[RolloutSummary, ...]:
        """Rollouts that were just stored in messages of their own, put into one."""
        payloads = [self.rollouts.pop(summary.sequences[0]) for summary in apart]
        (message,), slots = pack(payloads)
        self.next_rollout -= len(apart)
        stored = self.store_payload(message)
        pairs = zip(apart, slots, strict=True)
        return tuple(replace(s, sequences=(stored,), offset=at.offset, nbytes=at.nbytes) for s, at in pairs)

    def make_rollout(self, n: int, attempt: str, i: int) -> Rollout:
        """Random tokens, the first half of the version at issue or later, the rest of the newest one."""
        length = self.random.randint(2, 8)
        tokens = TokenIds(self.random.randrange(100) for _ in range(length))
        newest = max(self.versions())
        oldest = self.random.choice([v for v in self.versions() if v.number >= self.issue_version(n)])
        half = length // 2
        spans = (VersionSpan(oldest, 0, half), VersionSpan(newest, half, length))
        logprobs = LogProbs([-0.5] * length)
        return Rollout(self.run_id, n, attempt, i, TokenIds((1, 2, 3)), tokens, logprobs, FinishReason.STOP, spans)

    def store_rollout(self, rollout: Rollout) -> int:
        return self.store_payload(encode_rollout(rollout))

    def store_payload(self, payload: bytes) -> int:
        self.rollouts[self.next_rollout] = payload
        self.next_rollout += 1
        return self.next_rollout - 1

    def commit(self, group: Group) -> None:
        sequence, self.next_group = self.next_group, self.next_group + 1
        self.groups[sequence] = group
        self.prompts.discard(group.n)
        self.queue.store(sequence, group)

    def late_group(self, n: int) -> None:
        """Another attempt at a settled group, stored long after the first one was purged."""
        group = replace(self.make_group(n, "late", [True, True]), min_version=0)
        self.groups[self.next_group] = group
        self.next_group += 1

    def issue_version(self, n: int) -> int:
        issues = (r for r in self.ledger if isinstance(r, Issue))
        return next(issue.version for issue in issues if issue.first <= n < issue.first + issue.count)

    # ---------------------------------------------------------------- the trainer

    def start_trainer(self, restored: int = 0) -> None:
        self.lineage, self.steps = self.lineage + 1, restored
        self.announce(Lineage(self.lineage, f"trainer-{self.lineage}", restored))
        self.publish()

    def announce(self, record: TrainerRecord) -> None:
        self.trainer.append(record)

    def restart_trainer(self) -> None:
        """All ranks die; the next lineage starts from the newest checkpoint and replays what it lacks."""
        kept = [r.k for r in self.trainer if isinstance(r, Checkpoint)]
        self.start_trainer(
            max(kept, default=0) if self.random.random() < 0.7 or len(kept) < 2 else sorted(set(kept))[-2]
        )

    def publish(self) -> None:
        version = PolicyVersion(self.steps, self.lineage)
        self.announce(Version(version, "file:///weights", "hash", self.chain[self.steps].hex()))
        self.queue.publish(self.steps)

    def train(self) -> None:
        """One step; when due a checkpoint, and then the purge that it allows."""
        self.steps += 1
        self.publish()
        if self.steps % self.spec.checkpoint.interval == 0 or self.steps == self.spec.trainer.total_steps:
            self.save()

    def save(self) -> None:
        before = [r.k for r in self.trainer if isinstance(r, Checkpoint)]
        self.announce(self.make_checkpoint())
        if before:
            self.purge(self.batches[max(before) - 1].floors)

    def make_checkpoint(self) -> Checkpoint:
        path = f"/nowhere/{self.run_id}/{self.steps}.{self.lineage}"
        return Checkpoint(self.steps, self.lineage, path, "00", self.chain[self.steps].hex())

    def purge(self, floors: Floors) -> None:
        self.groups = {s: g for s, g in self.groups.items() if s > floors.groups}
        self.rollouts = {s: r for s, r in self.rollouts.items() if s > floors.rollouts}

    def versions(self) -> list[PolicyVersion]:
        """All that were published; engines keep the highest until a replay has passed it."""
        return [r.version for r in self.trainer if isinstance(r, Version)]

    # ---------------------------------------------------------------- all of it

    def begin(self) -> None:
        self.start_trainer()
        self.record(StateChange(RunState.RUNNING, "a trainer and a rollout worker have joined"))

    def play(self, steps: int | None = None) -> World:
        """Workers and the trainer take turns at random until `steps` batches are trained; all ends the run."""
        total = self.spec.trainer.total_steps
        if not self.lineage:
            self.begin()
        while self.steps < (steps or total):
            self.coordinate()
            in_flight = list(self.queue.in_flight_groups())
            if self.steps < len(self.batches) and (not in_flight or self.random.random() < 0.3):
                self.train()
            else:
                self.work(self.random.choice(in_flight))
        if steps is None:
            self.end()
        return self

    async def write(self, bus: Bus) -> None:
        """Store it all under the sequences it was played with."""
        for record in self.ledger:
            await bus.publish(subjects.ledger(self.run_id), encode_ledger(record))
        for trainer_record in self.trainer:
            await bus.publish(subjects.trainer(self.run_id), encode_trainer(trainer_record))
        for n in self.prompts:
            await bus.publish(subjects.prompt(self.run_id, n), encode_prompt(self.prompt(n)))
        await self._write_stream(bus, subjects.ROLLOUTS, self.first_rollout, self.next_rollout)
        await self._write_stream(bus, subjects.GROUPS, self.first_group, self.next_group)

    async def _write_stream(self, bus: Bus, stream: str, first: int, end: int) -> None:
        for sequence in range(first, end):
            if stream == subjects.ROLLOUTS:
                subject, payload = subjects.rollouts(self.run_id), self.rollouts.get(sequence)
            else:
                group = self.groups.get(sequence)
                subject = subjects.group(self.run_id, group.n if group else 0)
                payload = encode_group(group) if group else None
            stored = await bus.publish(subject, payload or b"gone")
            assert stored == sequence, f"{stream} gave sequence {stored}, the run was played with {sequence}"
            if payload is None:
                await bus.js.delete_msg(stream, sequence)

    def prompt(self, n: int) -> Prompt:
        return Prompt(self.run_id, n, n, 0, (1, 2, 3), "3+4=", "7", "exact", "{}", 2, Sampling(8), n, 0)


def advance(chain: bytes, batch: Batch) -> bytes:
    """The next link of the hash chain, as the contract words it."""
    digest = hashlib.blake2b(digest_size=32)
    for group in batch.groups:
        digest.update(group.n.to_bytes(8, "big") + b"".join(r.content_hash for r in group.rollouts))
    return hashlib.blake2b(chain + digest.digest(), digest_size=32).digest()
