"""A coordinator process at work, as `coordinator_bench.py` measures it: the bench plays its workers and its trainer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.harness import ROOT, services
from bench.processes import cpu_seconds
from bench.queue_side import InFlight, draw_outcomes, stored_group
from sluice.cancellation import end_tasks
from sluice.client import RunsClient
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.local.stack import StackOptions
from sluice.transport.log import FencedLog, trainer_log
from sluice.transport.nats import Bus
from sluice.transport.queues import store_group
from sluice.types import Batch, Issue, Lineage, PolicyVersion, TrainerRecord, Version
from sluice.wire import subjects
from sluice.wire.records import decode_ledger

GROUP_SIZE = 2
STALENESS = 15
"""So that a batch, a sixteenth of the live groups, is one message of 8 MiB even with 100,000 of them live."""
HEARTBEAT_SECONDS = 2.0
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.005
WARM_UP, WARM_UP_GROUPS = 10, 50
"""Rounds of work that are not counted: the process still imports what its first groups and batches need."""


class Coordination:
    """One run in the hands of a real coordinator: groups go in, and what it decides comes out of LEDGER."""

    def __init__(self, bus: Bus, run_id: str, pid: int, batch_size: int) -> None:
        self._bus, self._run_id, self._pid, self._batch_size = bus, run_id, pid, batch_size
        self._rng = random.Random(batch_size)
        self._trainer: FencedLog[TrainerRecord] = trainer_log(bus, run_id)
        self._in_flight = InFlight(self._rng)
        self._news = asyncio.Event()
        self._version_of: dict[int, int] = {}
        self._issued = 0
        self._settled = 0
        self._trainer_at = 0
        self.batches = 0

    async def begin(self) -> None:
        """Publish v0, register a worker, and wait until every group that may be issued is."""
        await self._bus.nc.subscribe(subjects.ledger(self._run_id), cb=self._hear)
        await self._trainer.append(Lineage(1, "bench", 0))
        await self._publish(0)
        await self.beat()
        await self._until_settled()
        for _ in range(WARM_UP):
            await self.work(WARM_UP_GROUPS)

    async def beat(self) -> None:
        """A worker's registration; it runs out when it is not renewed."""
        bucket = await self._bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
        await bucket.put(f"{self._run_id}.bench", json.dumps({"run": self._run_id}).encode())

    async def work(self, groups: int) -> float:
        """Store `groups` groups at once, and wait until the coordinator has decided all that follows; its CPU-seconds
        for each group. They are fewer if fewer are in flight: all the others are kept, and wait for an older one."""
        begin = cpu_seconds(self._pid)
        chosen = [self._in_flight.draw() for _ in range(min(groups, len(self._in_flight)))]
        drawn = {n: draw_outcomes(self._rng, GROUP_SIZE) for n in chosen}
        self._settled += sum(len(set(outcomes)) == 1 for outcomes in drawn.values())
        await asyncio.gather(
            *(
                store_group(self._bus, stored_group(self._run_id, n, self._version_of.pop(n), outcomes))
                for n, outcomes in drawn.items()
            )
        )
        await self._until_settled()
        return (cpu_seconds(self._pid) - begin) / len(chosen)

    async def _hear(self, message: Any) -> None:
        match decode_ledger(message.data):
            case Issue() as issue:
                self._issued = issue.first + issue.count
                self._in_flight.add(issue)
                self._version_of |= dict.fromkeys(range(issue.first, issue.first + issue.count), issue.version)
                self._news.set()
            case Batch(k):
                self.batches = k + 1
                self._news.set()

    async def _until_settled(self) -> None:
        """Until each settled group is refilled, and every prompt published: none is taken out of PROMPTS here. That a
        group was kept cannot be seen from outside: what it costs may count for those that come after it.

        A batch is trained at once, and frees places for as many groups.
        """
        published = self._trainer_at
        async with asyncio.timeout(WAIT_SECONDS):
            while not len(self._in_flight) or self._issued < self._settled + self._capacity:
                if self.batches > published:
                    await self._publish(published := self.batches)
                    continue
                self._news.clear()
                await self._news.wait()
            while (await self._bus.js.stream_info(subjects.PROMPTS)).state.messages < self._issued:
                await asyncio.sleep(POLL_SECONDS)

    @property
    def _capacity(self) -> int:
        """Groups that may be kept, trained or in flight."""
        return (self._trainer_at + STALENESS + 1) * self._batch_size

    async def _publish(self, number: int) -> None:
        self._trainer_at = number
        await self._trainer.append(Version(PolicyVersion(number, 1), "file:///nowhere", "", ""))


@asynccontextmanager
async def coordination(live: int, folder: Path) -> AsyncIterator[Coordination]:
    """A coordinator with a run that has `live` groups live; ended with the block."""
    batch_size = live // (STALENESS + 1)
    options = StackOptions(data=folder / "data", model=ROOT / "models" / "tiny")
    async with services(options, ["nats", "valkey", "coordinator"], folder / "logs") as (stack, supervisor):
        bus = await Bus.connect(stack.nats_url, "bench")
        async with RunsClient(stack.api_url) as client:
            run = await client.create(_spec(batch_size))
        held = Coordination(bus, run.id, supervisor.pids["coordinator"], batch_size)
        beating = asyncio.create_task(_beat(held))
        try:
            await held.begin()
            yield held
        finally:
            await end_tasks([beating])
            await bus.close()


async def _beat(held: Coordination) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        await held.beat()


def _spec(batch_size: int) -> RunSpec:
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["rollout"] |= {"group_size": GROUP_SIZE}
    fields["reward"] |= {"check_truths": False}  # nobody is there to judge
    fields["asynchrony"] |= {"max_staleness": STALENESS}
    fields["trainer"] |= {"prompts_per_step": batch_size, "total_steps": 1_000_000}
    fields["checkpoint"] |= {"interval": 1}
    return parse_run_spec(fields)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below `share` of them."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
