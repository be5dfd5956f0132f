"""One run on a stack with simulated engine and trainer: submitted, waited for, and read back from what it stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import services
from bench.simulated.stack import Simulation, simulated
from sluice.audit import audit
from sluice.client import RunsClient
from sluice.config import RunSpec
from sluice.errors import SluiceError
from sluice.local.stack import StackOptions
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import read_groups
from sluice.types import Batch, Drop, DropReason, RunState
from sluice.views import RunView

SERVICES = ("nats", "valkey", "reward-0", "coordinator", "engine-0", "rollout-0", "trainer")
FILTERED = {DropReason.ALL_CORRECT, DropReason.ALL_WRONG, DropReason.UNIFORM}
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Facts:
    """What a finished run came to."""

    seconds: float
    """From its first ISSUE record to the last policy version."""
    groups: int
    tokens: int
    """Response tokens of all groups that were stored."""
    wasted_tokens: int
    """Of groups that neither trained nor were dropped by their outcomes."""
    staleness_max: int


@dataclass(frozen=True, slots=True)
class SimulatedStack:
    """A running stack; submit one run after the other."""

    client: RunsClient
    bus: Bus
    nats_url: str
    pids: Mapping[str, int]
    """By command: `trainer-0`, else as the service."""

    async def run(self, spec: RunSpec, seconds: float) -> Facts:
        """Run `spec` to its end, and audit it. Raises: SluiceError: it failed, or the audit found something."""
        created = await self.client.create(spec)
        run = await self._wait(created.id, seconds)
        if run.state is not RunState.SUCCEEDED or run.first_issue_at is None:
            raise SluiceError(f"run {run.id} {run.state}: {run.reason}")
        report = await audit(self.nats_url, run.id)
        if not report.clean:
            raise SluiceError(f"audit of run {run.id}: {report.findings[0].detail}")
        versions = await self.client.versions(run.id)
        took = (versions[-1].published_at - run.first_issue_at).total_seconds()
        return await self._facts(run.id, took)

    async def issued(self) -> int:
        """Groups issued so far, over all runs."""
        return sum(run.counts.issued for run in await self.client.runs())

    async def _wait(self, run_id: str, seconds: float) -> RunView:
        async with asyncio.timeout(seconds):
            while not (run := await self.client.get(run_id)).state.terminal:
                await asyncio.sleep(POLL_SECONDS)
            return run

    async def _facts(self, run_id: str, seconds: float) -> Facts:
        records = [entry.record for entry in await ledger_log(self.bus, run_id).read()]
        batches = [record for record in records if isinstance(record, Batch)]
        drops = [record for record in records if isinstance(record, Drop)]
        useful = {entry.n for batch in batches for entry in batch.groups}
        useful |= {n for batch in batches for n, reason in batch.dropped if reason in FILTERED}
        useful |= {n for drop in drops if drop.reason in FILTERED for n in drop.groups}
        tokens = {g.n: sum(r.length for r in g.rollouts) for _, g in await read_groups(self.bus, run_id, 1)}
        staleness = [b.k - r.oldest_version.number for b in batches for g in b.groups for r in g.rollouts]
        return Facts(
            seconds=seconds,
            groups=len(tokens),
            tokens=sum(tokens.values()),
            wasted_tokens=sum(count for n, count in tokens.items() if n not in useful),
            staleness_max=max(staleness),
        )


@asynccontextmanager
async def simulated_stack(simulation: Simulation, model: Path, folder: Path) -> AsyncIterator[SimulatedStack]:
    """Real services around a simulated engine and trainer; nothing of it is left afterwards but its logs."""
    options = StackOptions(data=folder / "data", model=model, reward_servers=1, change=simulated(simulation))
    async with services(options, SERVICES, folder / "logs") as (stack, supervisor), RunsClient(stack.api_url) as client:
        bus = await Bus.connect(stack.nats_url, "bench")
        try:
            yield SimulatedStack(client, bus, stack.nats_url, supervisor.pids)
        finally:
            await bus.close()
