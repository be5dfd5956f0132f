"""A run that moves while it is audited: every message is stored in the order in which the services would store it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from sluice.audit import audit
from sluice.transport.nats import Bus
from sluice.types import Floors, Group, Issue, LedgerRecord, Rollout, TrainerRecord
from sluice.wire import subjects
from sluice.wire.codec import encode_group, encode_prompt, encode_rollout
from sluice.wire.records import encode_ledger, encode_trainer
from tests.audit.world import World, make_spec

Deed = Callable[[Bus], Awaitable[object]]


class Journal(World):
    """A world that remembers what was stored, acked and purged, in order."""

    def __post_init__(self) -> None:
        self.deeds: list[Deed] = []
        super().__post_init__()
        for record in self.ledger:
            self._store(subjects.ledger(self.run_id), encode_ledger(record))

    async def replay(self, bus: Bus, moved: asyncio.Event) -> None:
        for deed in self.deeds:
            await deed(bus)
        moved.set()

    def record(self, record: LedgerRecord) -> None:
        super().record(record)
        self._store(subjects.ledger(self.run_id), encode_ledger(record))
        if isinstance(record, Issue):
            for n in range(record.first, record.first + record.count):
                self._store(subjects.prompt(self.run_id, n), encode_prompt(self.prompt(n)))

    def announce(self, record: TrainerRecord) -> None:
        super().announce(record)
        self._store(subjects.trainer(self.run_id), encode_trainer(record))

    def store_rollout(self, rollout: Rollout) -> int:
        self._store(subjects.rollouts(self.run_id), encode_rollout(rollout))
        return super().store_rollout(rollout)

    def commit(self, group: Group) -> None:
        self._store(subjects.group(self.run_id, group.n), encode_group(group))
        self._purge(subjects.PROMPTS, subjects.prompt(self.run_id, group.n))
        super().commit(group)

    def purge(self, floors: Floors) -> None:
        super().purge(floors)
        self._purge(subjects.GROUPS, subjects.groups(self.run_id), floors.groups + 1)
        self._purge(subjects.ROLLOUTS, subjects.rollouts(self.run_id), floors.rollouts + 1)

    def _store(self, subject: str, payload: bytes) -> None:
        self.deeds.append(lambda bus: bus.publish(subject, payload))

    def _purge(self, stream: str, subject: str, before: int | None = None) -> None:
        self.deeds.append(lambda bus: bus.js.purge_stream(stream, subject=subject, seq=before))


@pytest.mark.parametrize("seed", range(3))
async def test_a_run_is_clean_at_every_moment_while_it_moves(bus: Bus, nats_url: str, seed: int) -> None:
    world = Journal("run-a", make_spec(trainer={"total_steps": 40}), random.Random(seed))
    world.play()
    moved = asyncio.Event()
    auditor = await Bus.connect(nats_url, "auditor", deadline_seconds=10)
    replay = asyncio.create_task(world.replay(bus, moved))
    await asyncio.sleep(0.05)
    seen = []
    while not moved.is_set():
        report = await audit(auditor, "run-a")
        assert report.findings == ()
        seen.append(report.training_steps)
    await replay
    await auditor.close()
    assert len(set(seen)) > 3, "it was audited while it moved"
    report = await audit(bus, "run-a")
    assert (report.findings, report.trained) == ((), 120)
