"""Who is slow, or has no room, slows the run down and is named; nothing is lost, made up, too stale, or piled up.

A real coordinator, worker, reward server and trainer; the engine is simulated, so that it is never what holds a run up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.audit import AuditReport, audit
from sluice.config import RunSpec
from sluice.transport.nats import Bus
from sluice.transport.queues import read_groups
from sluice.types import GroupStatus
from sluice.wire import subjects
from tests.coordinator.stage import Coordinator, create, get, post, spec, wait_for_state
from tests.faults import verifiers
from tests.faults.test_named import scrape
from tests.faults.test_purge import settings_of
from tests.faults.work import PATIENCE, until
from tests.local.processes import supervised, valkey
from tests.rollout.stage import Process, WorkerProcess, wait_until
from tests.servers import free_port, simulated_engine
from tests.trainer.running import train

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.usefixtures("trainer_here"),
]
SLOTS = 4


@pytest.fixture(scope="module")
def engine_url(tiny_model: Path) -> Iterator[str]:
    """Answers at once, right and wrong in turn."""
    with simulated_engine(tiny_model, "constant:0.02") as url:
        yield url


@pytest.fixture(scope="module")
def reward_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One process judges, at its own pace where a run asks for `slow`."""
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "SLUICE_REWARD_BIND": address,
        "SLUICE_REWARD_WORKERS": "1",
        "SLUICE_REWARD_VERIFIERS": "slow=tests.faults.verifiers:slow",
    }
    server = Process("services.reward", [], settings, tmp_path_factory.mktemp("reward") / "log")
    wait_until(lambda: '"serving"' in server.log.read_text(), 60.0, server.log)
    yield address
    server.kill()


@dataclass
class Services:
    """Those around one run."""

    coordinator: Coordinator
    worker: WorkerProcess
    metrics: int
    """Port of the worker's metrics."""

    async def view(self, run: str) -> dict[str, Any]:
        return dict(await get(self.coordinator, f"/v1/runs/{run}"))

    async def waits(self, run: str) -> dict[str, str]:
        """Who is waited for, by the wait's name."""
        return {wait["name"]: wait["waits_for"] for wait in (await self.view(run))["waits"]}

    async def worker_says(self, sample: str) -> float:
        """The value of a sample among the worker's metrics, given without its run."""
        name, _, labels = sample.partition("{")
        for line in (await scrape(self.metrics)).splitlines():
            if line.startswith(name) and labels.rstrip("}") in line:
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"the worker has no {sample}")

    def worker_bytes(self) -> int:
        """Resident memory of the worker."""
        pages = Path(f"/proc/{self.worker.popen.pid}/statm").read_text().split()[1]
        return int(pages) * 4096


@pytest.fixture
async def services(
    bus: Bus, nats_url: str, engine_url: str, reward_address: str, tmp_path: Path
) -> AsyncIterator[Services]:
    redis, metrics = free_port(), free_port()
    async with supervised([valkey("redis", redis, tmp_path / "redis")], tmp_path / "logs"):
        coordinator = Coordinator(nats_url, {"SLUICE_REDIS_URL": f"redis://127.0.0.1:{redis}/0"})
        settings = {
            "SLUICE_MAX_GROUPS_IN_FLIGHT": str(SLOTS),
            "SLUICE_METRICS_PORT": str(metrics),
            "SLUICE_NATS_DEADLINE_SECONDS": "4",
        }
        worker = WorkerProcess(nats_url, engine_url, reward_address, tmp_path, **settings)
        yield Services(coordinator, worker, metrics)
        worker.kill()
        coordinator.kill()


def small(model: Path, **changes: Any) -> RunSpec:
    """Two groups of two a step, trained by the tiny model."""
    return spec(model__path=str(model), trainer__prompts_per_step=2, **changes)


async def past_its_deadline(worker: WorkerProcess) -> bool:
    return '"still_waiting"' in worker.log.read_text()


async def assert_nothing_lost(nats_url: str, run: str) -> AuditReport:
    report = await audit(nats_url, run)
    assert report.findings == ()
    assert (report.lost, report.trained_twice, report.staleness_violations) == (0, 0, 0)
    return report


async def test_a_verifier_that_is_merely_slow_is_named_as_what_holds_the_run_back_and_changes_no_outcome(
    bus: Bus, nats_url: str, services: Services, tiny_model: Path, tmp_path: Path
) -> None:
    config = small(tiny_model, trainer__total_steps=1000, reward__verifier="slow")
    run = (await create(services.coordinator, config))["id"]
    trainer = asyncio.create_task(train(settings_of(nats_url, tmp_path)))
    memory, most = list[int](), list[float]()

    async def named() -> bool:
        view = await services.view(run)
        if view["training_steps"]:
            memory.append(services.worker_bytes())
            most.append(await services.worker_says("sluice_rollout_in_flight_groups"))
        return (view["bottleneck"] or {}).get("part") == "reward"

    await until(named, "the verdict is reward")
    shown = await scrape(services.coordinator.port)
    assert f'sluice_bottleneck{{part="reward",run="{run}"}} 1.0' in shown
    assert max(most) <= SLOTS, "no group is begun for which there is no slot"
    assert memory[-1] - memory[0] < 16 << 20
    for status in ("handed_back", "verifier_failed", "failed", "lost"):
        assert await services.worker_says(f'sluice_rollout_groups_total{{status="{status}"}}') == 0
    groups = [group for _, group in await read_groups(bus, run, 1)]
    assert {group.status for group in groups} == {GroupStatus.SCORED}
    assert {r.score for group in groups for r in group.rollouts} == {verifiers.RIGHT, verifiers.WRONG}
    assert min(group.reward_seconds for group in groups) >= verifiers.SECONDS

    assert (await post(services.coordinator, f"/v1/runs/{run}/stop")).status_code == 200
    await wait_for_state(services.coordinator, run, "stopped", PATIENCE)
    assert await trainer == 0
    assert (await assert_nothing_lost(nats_url, run)).trained >= 4


async def test_a_full_stream_of_groups_holds_the_run_up_says_so_and_loses_nothing_once_there_is_room(
    bus: Bus, nats_url: str, services: Services, tiny_model: Path, tmp_path: Path
) -> None:
    steps = 6
    run = (await create(services.coordinator, small(tiny_model, trainer__total_steps=steps)))["id"]
    info = await bus.js.stream_info(subjects.GROUPS)
    await bus.js.update_stream(info.config, max_bytes=1000)  # two or three groups
    trainer = asyncio.create_task(train(settings_of(nats_url, tmp_path)))

    async def held_up() -> bool:
        return "GROUPS" in (await services.waits(run)).get("store", "")

    await until(held_up, "the status names who has no room")
    before = await services.view(run)
    assert before["training_steps"] < steps and before["state"] == "running"
    assert "maximum bytes exceeded" in services.worker.log.read_text()
    await until(lambda: past_its_deadline(services.worker), "the deadline of a store has passed")
    assert await services.worker_says('sluice_rollout_waiting{wait="store"}') >= 1
    assert f'sluice_wait_seconds{{run="{run}",wait="store"}}' in await scrape(services.coordinator.port)

    await bus.js.update_stream(info.config)
    await wait_for_state(services.coordinator, run, "succeeded", PATIENCE)
    assert await trainer == 0
    assert (await assert_nothing_lost(nats_url, run)).trained == 2 * steps
    for status in ("handed_back", "lost"):  # what is finished is not made again, however long it waits
        assert await services.worker_says(f'sluice_rollout_groups_total{{status="{status}"}}') == 0
