"""The hands of the test as a rollout worker: which prompts it holds, and when it stores which group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import Delivery, PromptQueue, store_group
from sluice.types import Claim, Drop, Issue, LedgerRecord
from tests.coordinator.stage import Stage

PATIENCE = 120.0


class Hands:
    """Holds every prompt that was delivered, and stores a kept group when told to."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.keep = 1.0
        self.held: dict[int, Delivery] = {}
        self._queue: PromptQueue | None = None

    async def hold(self, *numbers: int) -> None:
        """Pull until these prompts are in hand."""
        self._queue = self._queue or await PromptQueue.join(self.stage.bus, self.stage.run_id)
        async with asyncio.timeout(PATIENCE):
            while not set(numbers) <= set(self.held):
                for delivery in await self._queue.pull(64, wait_seconds=0.2):
                    self.held[delivery.prompt.n] = delivery

    async def store(self, *numbers: int) -> None:
        """Store groups in this order, then ack their prompts."""
        await self.hold(*numbers)
        for n in numbers:
            await store_group(self.stage.bus, self.stage.group(self.held[n].prompt))
            await self.held.pop(n).ack()


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Wait until `condition` gives something true."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE} s: {what}") from None


async def ledger(bus: Bus, run_id: str) -> list[LedgerRecord]:
    return [entry.record for entry in await ledger_log(bus, run_id).read()]


async def claims(stage: Stage, count: int) -> None:
    """Wait until the run was claimed `count` times."""

    async def claimed() -> bool:
        return sum(isinstance(record, Claim) for record in await stage.ledger()) >= count

    await until(claimed, f"{count} claims of run {stage.run_id}")


async def batches(stage: Stage, count: int) -> None:
    """Wait until the run has `count` batches."""

    async def emitted() -> bool:
        return len(await stage.batches()) >= count

    await until(emitted, f"{count} batches of run {stage.run_id}")


async def issued(stage: Stage) -> int:
    """Groups in ISSUE records, each number once."""
    numbers = [n for r in await stage.ledger() if isinstance(r, Issue) for n in range(r.first, r.first + r.count)]
    assert numbers == list(range(len(numbers))), "issue numbers have no gap and none is issued twice"
    return len(numbers)


async def dropped(stage: Stage) -> list[Drop]:
    return [record for record in await stage.ledger() if isinstance(record, Drop)]


async def trained(stage: Stage) -> list[int]:
    """Issue numbers in batches, each once; no batch twice, and no group staler than it may be."""
    found = await stage.batches()
    assert [batch.k for batch in found] == list(range(len(found)))
    numbers = [entry.n for batch in found for entry in batch.groups]
    assert len(numbers) == len(set(numbers)), "a group is in two batches"
    assert max(batch.k - entry.version for batch in found for entry in batch.groups) <= 1
    return numbers


async def finish(stage: Stage, steps: int, settled: Iterable[int] = ()) -> None:
    """Work and train until `steps` batches are trained, then store the last checkpoint."""
    async with asyncio.timeout(PATIENCE):
        while stage.trained < steps:
            await stage.work()
            await stage.train()
    await stage.checkpoint()
