"""Workers come and go in mid-run, by signal and by crash; every prompt becomes one group all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.transport.nats import Bus
from sluice.types import GroupStatus, Sampling
from tests.rollout.stage import RewardServer, Stage, WorkerProcess, eventually
from tests.servers import simulated_engine

PORTION = 32
"""Prompts that are offered at a time, so that there are some for whoever comes last, however long that takes."""
SLOTS = "4"
"""Groups in flight of a worker: how much is done depends on how many there are."""


@pytest.fixture
def engine_url(tiny_model: Path) -> Iterator[str]:
    """A simulated engine that all workers share; each response takes 0.3 s."""
    with simulated_engine(tiny_model, "constant:0.3") as url:
        yield url


async def test_from_one_worker_to_eight_to_two_every_prompt_becomes_one_group(
    bus: Bus, nats_url: str, tiny_model: Path, engine_url: str, tmp_path: Path
) -> None:
    stage = Stage(bus, tiny_model, tmp_path)
    await stage.open()
    await stage.publish(0)
    await stage.forget_silent_workers_after(3.0)
    reward = RewardServer(tmp_path / "reward")
    workers: dict[str, WorkerProcess] = {}
    offered = 0

    async def offer() -> None:
        nonlocal offered
        await stage.offer(*(stage.prompt(n, sampling=Sampling(8)) for n in range(offered, offered + PORTION)))
        offered += PORTION

    async def all_have_stored(names: set[str]) -> bool:
        stored = await stage.stored()
        if len(stored) > offered - PORTION:
            await offer()
        return names <= {group.worker for group in stored.values()}

    def join(*names: str) -> None:
        for name in names:
            settings = {"SLUICE_WORKER_NAME": name, "SLUICE_MAX_GROUPS_IN_FLIGHT": SLOTS}
            workers[name] = WorkerProcess(nats_url, engine_url, reward.address, tmp_path, **settings)

    try:
        join("w0")
        await offer()
        before = await stage.groups(4)
        await stage.publish(1)
        late = {f"w{i}" for i in range(1, 8)}
        join(*sorted(late))
        await eventually(lambda: all_have_stored(late), 60)
        workers.pop("w3").kill()
        leaving = [workers.pop(f"w{i}") for i in (0, 2, 4, 5, 6)]
        codes = await asyncio.gather(*(asyncio.to_thread(worker.stop) for worker in leaving))
        assert codes == [0] * 5
        groups = await stage.groups(offered)
        assert set(before) <= set(groups) == set(range(offered))
        assert {group.status for group in groups.values()} == {GroupStatus.SCORED}
        theirs = [s for group in groups.values() if group.worker in late for s in group.rollouts]
        assert {s.oldest_version.number for s in theirs} == {1}, "who comes late serves the newest version only"
    finally:
        for worker in workers.values():
            worker.kill()
        reward.kill()
