"""A run as a coordinator and a worker write it: spec, rollouts, groups and batches, stored in a real NATS server."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sluice.config import RunSpec, parse_run_spec
from sluice.packed import LogProbs, TokenIds
from sluice.transport.log import FencedLog, last_sequence, ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import Stored, store_group, store_rollouts
from sluice.types import (
    Batch,
    BatchGroup,
    FinishReason,
    Floors,
    Group,
    GroupStatus,
    Issue,
    LedgerRecord,
    PolicyVersion,
    Rollout,
    RolloutSummary,
    RunCreated,
    RunState,
    SamplingStats,
    StateChange,
    Tally,
    VerdictKind,
    VersionSpan,
)
from sluice.wire import subjects

RUN = "run-test"
GROUP_SIZE = 4
FIRST_DIGIT, PLUS, EQUALS, NEWLINE, EOS = 5, 15, 18, 3, 1
"""Token ids of the tiny model."""


def make_spec(model: Path, /, **sections: dict[str, Any]) -> RunSpec:
    """A run of the tiny model in float32 on two prompts a step; `sections` change fields."""
    fields: dict[str, dict[str, Any]] = {
        "model": {"path": str(model), "trainer_dtype": "float32", "engine_dtype": "float32"},
        "data": {"train_files": ["additions.jsonl"], "max_prompt_length": 8},
        "rollout": {"group_size": GROUP_SIZE, "max_response_length": 8},
        "optim": {"lr": 1e-3},
        "trainer": {"total_steps": 100, "prompts_per_step": 2, "max_tokens_per_micro_batch": 64},
        "checkpoint": {"interval": 100},
    }
    return parse_run_spec({**fields, **{name: {**fields.get(name, {}), **sections[name]} for name in sections}})


def make_rollouts(n: int, rng: random.Random, lengths: list[int] | None = None) -> list[Rollout]:
    """A group of the tiny model's size: one addition, answers of 1 to 6 random tokens that often begin alike."""
    a, b = rng.randrange(10), rng.randrange(10)
    prompt = (FIRST_DIGIT + a, PLUS, FIRST_DIGIT + b, EQUALS)
    wanted = lengths or [rng.randint(1, 6) for _ in range(GROUP_SIZE)]
    answers = [tuple(rng.choice((FIRST_DIGIT, FIRST_DIGIT + 1, NEWLINE)) for _ in range(length)) for length in wanted]
    return [
        Rollout(
            run_id=RUN,
            n=n,
            attempt=f"attempt-{n}",
            i=i,
            prompt_token_ids=TokenIds(prompt),
            token_ids=TokenIds(answer),
            logprobs=LogProbs(-rng.random() * 3 for _ in answer),
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(PolicyVersion(0, 1), 0, len(answer)),) if answer else (),
        )
        for i, answer in enumerate(answers)
    ]


NOT_STORED = Stored((), b"", 0, 0)
NO_FLOORS = Floors(0, 0)


def summarise(rollout: Rollout, acc: float, stored: Stored = NOT_STORED) -> RolloutSummary:
    """What a group says about a rollout with this outcome."""
    version = PolicyVersion(0, 1)
    return RolloutSummary(
        stored.sequences,
        stored.content_hash,
        VerdictKind.SCORED,
        acc,
        acc,
        0.0,
        len(rollout.token_ids),
        rollout.finish_reason,
        version,
        version,
        offset=stored.offset,
        nbytes=stored.nbytes,
    )


@dataclass
class Script:
    """Writes one run, group by group and batch by batch."""

    bus: Bus
    spec: RunSpec
    seed: int = 0
    k: int = 0
    n: int = 0
    batches: list[Batch] = field(default_factory=list)
    rollouts: dict[int, list[Rollout]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger: FencedLog[LedgerRecord] = ledger_log(self.bus, RUN)
        self.rng = random.Random(self.seed)

    async def create(self) -> None:
        """The run exists and waits for a trainer."""
        await self.ledger.append(RunCreated(RUN, self.spec.canonical_json, self.spec.config_hash))
        await self.set_state(RunState.QUEUED)

    async def set_state(self, state: RunState, record: bool = False) -> None:
        """What `runs` says; with `record` also what LEDGER says."""
        if record:
            await self.ledger.append(StateChange(state, "test"))
        bucket = await self.bus.bucket(subjects.RUNS_BUCKET)
        value = {"state": state, "created_at": 1.0, "config_hash": self.spec.config_hash}
        await bucket.put(RUN, json.dumps(value).encode())

    async def add_batch(
        self,
        floors: Floors = NO_FLOORS,
        lengths: list[int] | None = None,
        behaviour: float | None = None,
        swap: bool = False,
    ) -> Batch:
        """Store two groups and the batch that consists of them.

        `lengths` and `behaviour` replace what would be drawn; with `swap` each group names its first rollout's hash
        for its second one.
        """
        groups = [await self._add_group(lengths, behaviour, swap) for _ in range(self.spec.trainer.prompts_per_step)]
        batch = Batch(self.k, tuple(groups), (), self.n, (), floors, Tally(issued=self.n), SamplingStats(), version=0)
        await self.ledger.append(batch)
        self.batches.append(batch)
        self.k += 1
        return batch

    async def floors(self) -> Floors:
        """The streams as they are: whatever is stored from here on lies above."""
        groups = await last_sequence(self.bus, subjects.GROUPS, subjects.groups(RUN))
        return Floors(groups, await last_sequence(self.bus, subjects.ROLLOUTS, subjects.rollouts(RUN)))

    async def _add_group(self, lengths: list[int] | None, behaviour: float | None, swap: bool) -> BatchGroup:
        n, self.n = self.n, self.n + 1
        await self.ledger.append(Issue(n, 1, 0, NO_FLOORS))
        rollouts = make_rollouts(n, self.rng, lengths)
        if behaviour is not None:
            rollouts = [replace(r, logprobs=LogProbs([behaviour] * len(r.token_ids))) for r in rollouts]
        self.rollouts[n] = rollouts
        stored = await store_rollouts(self.bus, rollouts)
        if swap:
            stored[1] = replace(stored[1], content_hash=stored[0].content_hash)
        summaries = tuple(summarise(r, float(r.i % 2), s) for r, s in zip(rollouts, stored, strict=True))
        group = Group(RUN, n, rollouts[0].attempt, GroupStatus.SCORED, summaries, "w", "e", 0, 0.1, 0.1)
        assert await store_group(self.bus, group)
        return BatchGroup(n, group.attempt, 0, 0, summaries)


def make_batch(spec: RunSpec, seed: int = 0) -> tuple[Batch, dict[int, list[Rollout]]]:
    """A batch that is in no server, with its rollouts by issue number; one response is empty."""
    rng = random.Random(seed)
    rollouts = {n: make_rollouts(n, rng) for n in range(spec.trainer.prompts_per_step)}
    rollouts[0] = make_rollouts(0, rng, [3, 0, 1, 5])
    groups = tuple(
        BatchGroup(n, found[0].attempt, 0, 0, tuple(summarise(r, float(r.i == n % 3)) for r in found))
        for n, found in rollouts.items()
    )
    return Batch(0, groups, (), len(groups), (), NO_FLOORS, Tally(), SamplingStats(), version=0), rollouts
