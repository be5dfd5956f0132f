"""What checkpoints and purges may not take: violations 2, 3, 4, 5, 9 and 13, on a real coordinator and a real trainer.

The test is the rollout worker, so it chooses in which order rollouts and groups reach the streams.
"""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from services.trainer.config import TrainerSettings
from services.trainer.purge import room_is_wanted
from sluice.audit import audit
from sluice.transport.log import read_stream, trainer_log
from sluice.transport.nats import Bus
from sluice.transport.queues import Delivery, PromptQueue, store_group
from sluice.types import Batch, Checkpoint, Floors, Group, Lineage, TrainerRecord, Version
from sluice.wire import subjects
from tests.coordinator.stage import Coordinator, create, spec, wait_for_state
from tests.faults.conftest import StartCoordinator
from tests.faults.rollouts import store_attempt
from tests.faults.work import PATIENCE, ledger, until
from tests.trainer.running import train, trainer_process

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.usefixtures("trainer_here"),
]


class Run:
    """A run of batches of two whose worker is the test."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self.bus, self.id = bus, run_id
        self.deliveries: dict[int, Delivery] = {}
        self.attempts: dict[int, Group] = {}
        self._queue: PromptQueue | None = None

    async def generate(self, *numbers: int, attempt: str = "first") -> None:
        """Store the rollouts of these groups, in this order, and not their metadata."""
        self._queue = self._queue or await PromptQueue.join(self.bus, self.id)
        bucket = await self.bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)

        async def here() -> bool:
            assert self._queue is not None
            await bucket.put(f"{self.id}.test", json.dumps({"run": self.id}).encode())
            for delivery in await self._queue.pull(64, wait_seconds=0.2):
                self.deliveries[delivery.prompt.n] = delivery
            return set(numbers) <= set(self.deliveries)

        await until(here, f"prompts {numbers}")
        published = {r.version.number: r.version for r in await self.records() if isinstance(r, Version)}
        for n in numbers:
            prompt = self.deliveries[n].prompt
            self.attempts[n] = await store_attempt(self.bus, prompt, published[prompt.min_version], attempt)

    async def commit(self, *numbers: int) -> None:
        """Store the metadata of these groups, in this order."""
        for n in numbers:
            assert await store_group(self.bus, self.attempts[n])
            await self.deliveries[n].ack()

    async def both(self, *numbers: int) -> None:
        await self.generate(*numbers)
        await self.commit(*numbers)

    async def records(self) -> list[TrainerRecord]:
        return [entry.record for entry in await trainer_log(self.bus, self.id).read()]

    async def checkpoints(self) -> list[tuple[int, int]]:
        return [(r.k, r.lineage) for r in await self.records() if isinstance(r, Checkpoint)]

    async def checkpointed(self, k: int) -> None:
        async def stored() -> bool:
            return any(found >= k for found, _ in await self.checkpoints())

        await until(stored, f"checkpoint {k}")

    async def batches(self) -> list[list[int]]:
        return [[g.n for g in r.groups] for r in await ledger(self.bus, self.id) if isinstance(r, Batch)]

    async def stored(self, stream: str, subject: str) -> list[int]:
        return [sequence async for sequence, _, _ in read_stream(self.bus, stream, subject)]


def settings_of(nats: str, folder: Path) -> TrainerSettings:
    return TrainerSettings(nats_url=nats, nats_deadline_seconds=10, data_dir=folder, lease_seconds=1)


async def begin(coordinator: Coordinator, bus: Bus, steps: int = 4, interval: int = 1) -> Run:
    run = spec(
        trainer__prompts_per_step=2, trainer__total_steps=steps, checkpoint__interval=interval, rollout__group_size=2
    )
    view = await create(coordinator, run)
    return Run(bus, view["id"])


async def assert_clean(nats_url: str, run: Run, groups: int) -> None:
    report = await audit(nats_url, run.id)
    assert report.findings == ()
    assert (report.trained, report.lost, report.trained_twice, report.staleness_violations) == (groups, 0, 0, 0)


async def test_a_purge_takes_no_rollout_or_group_that_is_live_or_not_yet_trained_and_a_successor_goes_on_after_it(
    bus: Bus, nats_url: str, start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    first = start_coordinator(nats_url)
    run = await begin(first, bus, steps=5)
    trainer = asyncio.create_task(train(settings_of(nats_url, tmp_path)))
    await run.generate(3, 2, 1, 0)
    await run.commit(3, 1)
    await run.checkpointed(1)
    assert await run.batches() == [[1, 3]], "below whose rollouts lie those of group 2, which is live"
    await run.generate(5, 4)
    await run.commit(5, 4)
    assert len(await run.batches()) == 1, "0 and 2 must be in batch 1, or they would be too old for any"
    await run.commit(2, 0)
    await run.checkpointed(3)
    assert (await run.batches())[1:] == [[0, 2], [4, 5]], "batch 1 lies above batch 2, whole"
    await run.both(6, 7)
    await run.checkpointed(4)
    assert (await run.stored(subjects.GROUPS, subjects.groups(run.id)))[0] > 2, "the purge has acted"

    first.kill()  # a successor finds the beginning gone
    second = start_coordinator(nats_url)
    late = run.attempts[1]  # the prompt of a trained group came again: its fence is purged, so it is stored
    assert await store_group(bus, late)
    await run.both(8, 9)
    await wait_for_state(second, run.id, "succeeded", PATIENCE)
    assert await trainer == 0
    assert await run.batches() == [[1, 3], [0, 2], [4, 5], [6, 7], [8, 9]]
    await assert_clean(nats_url, run, groups=10)


async def test_a_trainer_that_was_frozen_over_its_successor_stores_and_purges_nothing_when_it_wakes(
    bus: Bus, nats_url: str, start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    coordinator = start_coordinator(nats_url)
    run = await begin(coordinator, bus, interval=2)
    settings = settings_of(nats_url, tmp_path)
    with trainer_process(settings) as frozen:
        await run.both(0, 1)

        async def trained_once() -> bool:
            return any(isinstance(r, Version) and r.version.number == 1 for r in await run.records())

        await until(trained_once, "version 1")
        frozen.send_signal(signal.SIGSTOP)
        with trainer_process(settings):
            await run.both(2, 3, 4, 5)
            await run.checkpointed(2)
            before = await run.records()
            groups = await run.stored(subjects.GROUPS, subjects.groups(run.id))
            frozen.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(frozen.wait, PATIENCE) == 3
            assert [r for r in await run.records() if getattr(r, "lineage", 2) == 1] == [
                r for r in before if getattr(r, "lineage", 2) == 1
            ]
            assert await run.stored(subjects.GROUPS, subjects.groups(run.id)) == groups
            await run.both(6, 7)
            await wait_for_state(coordinator, run.id, "succeeded", PATIENCE)
    assert [r.lineage for r in await run.records() if isinstance(r, Lineage)] == [1, 2]
    await assert_clean(nats_url, run, groups=8)


@pytest.fixture(params=[(subjects.ROLLOUTS, 1 << 20), (subjects.GROUPS, 1 << 17)], ids=lambda tight: tight[0])
def tight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """A stream that every coordinator gives only so many bytes."""
    stream, room = request.param
    monkeypatch.setenv(f"SLUICE_{stream}_BYTES", str(room))
    return stream, room


async def test_a_stream_that_fills_up_between_checkpoints_is_emptied_by_early_ones_before_anybody_is_stuck(
    tight: tuple[str, int], bus: Bus, nats_url: str, start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    stream, room = tight
    steps, size = 24, room // 22
    coordinator = start_coordinator(nats_url)
    run = await begin(coordinator, bus, steps=steps, interval=steps)
    trainer = asyncio.create_task(train(settings_of(nats_url, tmp_path)))
    for step in range(steps):
        pair = (2 * step, 2 * step + 1)
        await run.generate(*pair)
        if stream == subjects.ROLLOUTS:
            await bus.publish(subjects.rollouts(run.id), bytes(2 * size))  # what an attempt leaves that died
        else:
            run.attempts |= {n: replace(run.attempts[n], sample_text="x" * size) for n in pair}
        await run.commit(*pair)
    await wait_for_state(coordinator, run.id, "succeeded", PATIENCE)
    assert await trainer == 0
    assert steps * 2 * size > 2 * room
    early = [k for k, _ in await run.checkpoints() if k < steps]
    assert len(early) >= 2, "none of them was due by the interval"
    await assert_clean(nats_url, run, groups=2 * steps)


async def test_only_who_holds_a_share_of_a_full_stream_that_it_can_give_back_checkpoints_early(bus: Bus) -> None:
    config = (await bus.js.stream_info(subjects.ROLLOUTS)).config
    await bus.js.update_stream(config, max_bytes=100_000)
    small = await bus.publish(subjects.rollouts("small"), bytes(1000))
    large = [await bus.publish(subjects.rollouts("large"), bytes(1000)) for _ in range(75)][-1]

    async def wanted(run: str, below: int) -> bool:
        return await room_is_wanted(bus, run, Floors(0, below))

    assert await wanted("large", large) and not await wanted("large", small), "only what lies below its floors is given"
    assert not await wanted("small", large) and not await wanted("none", large)
    for _ in range(19):
        await bus.publish(subjects.rollouts("large"), bytes(1000))
    assert await wanted("small", large), "with hardly any room left, everything counts"
    assert not await wanted("none", large)
