"""How the planted-fault tests make a run, change one thing in it, and audit it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sluice.audit import AuditReport, Fault, audit
from sluice.transport.nats import Bus
from sluice.types import (
    Batch,
    BatchGroup,
    Checkpoint,
    RolloutSummary,
    Version,
)
from tests.audit.world import World, advance, make_spec


def played(packed: bool = False, **sections: dict[str, object]) -> World:
    """An ended run of four batches whose streams were never purged."""
    spec = make_spec(**({"checkpoint": {"interval": 4}} | sections))
    return World("run-a", spec, random.Random(1), packed=packed).play()


async def audited(bus: Bus, world: World) -> AuditReport:
    await world.write(bus)
    report = await audit(bus, world.run_id)
    assert not report.clean
    return report


def kinds(report: AuditReport) -> set[Fault]:
    return {finding.kind for finding in report.findings}


def rechain(world: World) -> None:
    """Let the trainer have trained the ledger as it now stands, so that the chain is not what gives a fault away."""
    chain = [world.chain[0]]
    for record in world.ledger:
        if isinstance(record, Batch):
            chain.append(advance(chain[-1], record))
    for i, trainer_record in enumerate(world.trainer):
        if isinstance(trainer_record, Version):
            world.trainer[i] = replace(trainer_record, chain=chain[trainer_record.version.number].hex())
        elif isinstance(trainer_record, Checkpoint):
            world.trainer[i] = replace(trainer_record, chain=chain[trainer_record.k].hex())


def edit_group(world: World, k: int, at: int, edit: Callable[[BatchGroup], BatchGroup]) -> None:
    """Change group number `at` of batch `k` in the ledger and in what its worker had stored: both tell the same lie."""
    groups = list(world.batches[k].groups)
    groups[at] = edit(groups[at])
    edit_batch(world, k, groups=tuple(groups))
    stored = world.groups[groups[at].groups_sequence]
    world.groups[groups[at].groups_sequence] = replace(stored, rollouts=groups[at].rollouts, attempt=groups[at].attempt)
    rechain(world)


def edit_rollout(world: World, k: int, edit: Callable[[RolloutSummary], RolloutSummary]) -> None:
    edit_group(world, k, 0, lambda g: replace(g, rollouts=(edit(g.rollouts[0]), *g.rollouts[1:])))


def batch_at(world: World, k: int) -> int:
    """Where batch `k` stands in the ledger."""
    return next(i for i, r in enumerate(world.ledger) if isinstance(r, Batch) and r.k == k)


def edit_batch(world: World, k: int, **fields: Any) -> None:
    """Change fields of a BATCH record after the fact."""
    at = batch_at(world, k)
    record = world.ledger[at]
    assert isinstance(record, Batch)
    world.ledger[at] = replace(record, **fields)
