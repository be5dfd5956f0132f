"""Whatever is stuck is named within a minute: in a log, in the run's status, and in a metric. Real services, frozen."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from services.trainer.presence import keep_present
from sluice.transport.nats import Bus
from tests.coordinator.stage import Coordinator, create, get, spec
from tests.local.processes import supervised, valkey
from tests.rollout.stage import ROOT, RewardServer, Stage, WorkerProcess, eventually
from tests.servers import NatsServer, free_port, wait_for_port

LIMIT_SECONDS = 60.0
SECONDS_A_GROUP = "constant:8"


@dataclass
class Fleet:
    """Three workers: one on an engine of its own, one on a reward server of its own, one to be frozen itself."""

    engines: list[subprocess.Popen[bytes]]
    engine_urls: list[str]
    rewards: list[RewardServer]
    workers: dict[str, WorkerProcess]
    metrics: dict[str, int]

    def parts(self) -> list[subprocess.Popen[bytes]]:
        """Those that this test freezes."""
        return [self.engines[0], self.rewards[1].popen, self.workers["frozen"].popen]


@contextmanager
def fleet(nats_url: str, model: Path, folder: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        command = [sys.executable, "-m", "bench.simulated.engine", "--model", str(model), "--latency", SECONDS_A_GROUP]
        engines = [subprocess.Popen([*command, "--port", str(port), "--keep-rate", "1"], cwd=ROOT) for port in ports]
        rewards = [RewardServer(folder / f"reward-{i}") for i in range(2)]
        for process in (*engines, *(reward.popen for reward in rewards)):
            stack.callback(process.wait)
            stack.callback(process.kill)
        for port in ports:
            wait_for_port(port)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        found = Fleet(engines, urls, rewards, {}, {})
        for name, engine, reward in (("on-engine", 0, 0), ("on-reward", 1, 1), ("frozen", 1, 0)):
            found.metrics[name] = free_port()
            settings = {
                "SLUICE_WORKER_NAME": name,
                "SLUICE_MAX_GROUPS_IN_FLIGHT": "2",
                "SLUICE_METRICS_PORT": str(found.metrics[name]),
            }
            worker = WorkerProcess(nats_url, urls[engine], rewards[reward].address, folder, **settings)
            stack.callback(worker.kill)
            found.workers[name] = worker
        yield found


@asynccontextmanager
async def run_in_full_swing(
    bus: Bus, coordinator: Coordinator, model: Path, around: Fleet, folder: Path
) -> AsyncIterator[str]:
    """A run whose workers all hold groups, and whose trainer is registered within the block."""
    view = await create(coordinator, spec(model__path=str(model)))
    stage = Stage(bus, model, folder, run=view["id"])
    registered = asyncio.create_task(keep_present(bus, stage.run, "trainer-a"))
    await eventually(lambda: _registered(stage, set(around.workers)), LIMIT_SECONDS)
    await stage.publish(0)
    await eventually(lambda: _busy(stage, set(around.workers)), LIMIT_SECONDS)
    registered.cancel()
    yield stage.run


async def _registered(stage: Stage, names: set[str]) -> bool:
    return names <= (await stage.workers()).keys()


async def _busy(stage: Stage, names: set[str]) -> bool:
    workers = await stage.workers()
    return all(name in workers and workers[name]["in_flight"] for name in names)  # a busy machine renews late


def says(log: Path, wait: str) -> bool:
    return f'"wait": "{wait}"' in log.read_text()


def mentions(log: Path, words: str) -> bool:
    return words in log.read_text()


async def scrape(port: int) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{port}/metrics")).text


async def within_a_minute(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not await condition():
            await asyncio.sleep(0.5)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[int]:
    port = free_port()
    async with supervised([valkey("redis", port, tmp_path / "redis")], tmp_path / "logs"):
        yield port


async def test_each_part_that_is_frozen_or_gone_is_named_in_a_log_the_status_and_a_metric_within_a_minute(
    bus: Bus, nats_server: NatsServer, tiny_model: Path, redis: int, tmp_path: Path
) -> None:
    log = tmp_path / "coordinator.log"
    coordinator = Coordinator(
        nats_server.url, {"SLUICE_REDIS_URL": f"redis://127.0.0.1:{redis}/0", "SLUICE_LOG_LEVEL": "info"}, log
    )
    try:
        with fleet(nats_server.url, tiny_model, tmp_path) as around:
            async with run_in_full_swing(bus, coordinator, tiny_model, around, tmp_path) as run:
                for part in around.parts():
                    part.send_signal(signal.SIGSTOP)
                await parts_are_named(coordinator, run, around, log)
                for part in around.parts():
                    part.send_signal(signal.SIGCONT)
                await a_frozen_coordinator_is_named(coordinator, around)
                await redis_and_nats_are_named(coordinator, run, nats_server, redis, log)
    finally:
        coordinator.thaw()
        coordinator.kill()


async def parts_are_named(coordinator: Coordinator, run: str, around: Fleet, log: Path) -> None:
    who = {
        "generate": around.engine_urls[0],
        "reward": "on-reward",
        "rollout_worker": "worker frozen",
        "trainer": "trainer-a",
    }

    async def named() -> bool:
        waits = {w["name"]: w["waits_for"] for w in (await get(coordinator, f"/v1/runs/{run}"))["waits"]}
        shown = await scrape(coordinator.port)
        return all(
            part in waits.get(wait, "")
            and f'sluice_wait_seconds{{run="{run}",wait="{wait}"}}' in shown
            and says(log, wait)
            for wait, part in who.items()
        )

    await within_a_minute(named)
    assert says(around.workers["on-engine"].log, "generate")
    assert says(around.workers["on-reward"].log, "reward")


async def a_frozen_coordinator_is_named(coordinator: Coordinator, around: Fleet) -> None:
    """By those who wait for it, as nobody else can: its own API is frozen with it."""
    coordinator.freeze()
    worker = around.workers["on-engine"]

    async def named() -> bool:
        shown = await scrape(around.metrics["on-engine"])
        return 'wait="coordinator"} 1.0' in shown and says(worker.log, "coordinator")

    await within_a_minute(named)
    coordinator.thaw()


async def redis_and_nats_are_named(
    coordinator: Coordinator, run: str, nats_server: NatsServer, redis: int, log: Path
) -> None:
    async def named(wait: str, metric: str) -> bool:
        waits = {w["name"] for w in (await get(coordinator, f"/v1/runs/{run}"))["waits"]}
        lines = (await scrape(coordinator.port)).splitlines()
        gone = any(line.startswith(metric) and float(line.split()[1]) > 0 for line in lines)
        return wait in waits and gone and mentions(log, f"{wait}_")

    reader, writer = await asyncio.open_connection("127.0.0.1", redis)
    writer.write(b"SHUTDOWN NOSAVE\r\n")
    await reader.read()
    writer.close()
    await within_a_minute(lambda: named("redis", "sluice_redis_away_seconds"))
    assert nats_server.process is not None
    nats_server.process.send_signal(signal.SIGSTOP)
    try:
        await within_a_minute(lambda: named("nats", "sluice_nats_silent_seconds"))
    finally:
        nats_server.process.send_signal(signal.SIGCONT)
