"""Engines and a reward server that the tests of this folder share, and a worker inside the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from services.rollout.engine import Engine
from services.rollout.loop import Settings, Worker
from services.rollout.presence import LiveStatus
from services.rollout.run import RunFinder
from sluice.telemetry import get_logger
from sluice.transport.nats import Bus
from tests.rollout.stage import EngineServer, RewardServer, Stage, WorkerProcess, endless_model

StartWorker = Callable[..., Awaitable[asyncio.Event]]
StartProcess = Callable[..., WorkerProcess]


@pytest.fixture(scope="session")
def servers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineServer, ...]]:
    """Two engines, started together: the tiny model, and its copy that ends no response by itself."""
    folder = tmp_path_factory.mktemp("engines")
    endless = endless_model(tiny_model, folder / "endless")
    engines = tuple(EngineServer(m, folder / f"{i}.log") for i, m in enumerate((tiny_model, endless)))
    for engine in engines:
        engine.wait()
    yield engines
    for engine in engines:
        engine.kill()


@pytest.fixture
def engine(servers: tuple[EngineServer, ...]) -> EngineServer:
    return servers[0]


@pytest.fixture
def endless_engine(servers: tuple[EngineServer, ...]) -> EngineServer:
    return servers[1]


@pytest.fixture(scope="session")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardServer]:
    server = RewardServer(tmp_path_factory.mktemp("reward") / "log")
    server.wait()
    yield server
    server.stop()


@pytest.fixture
async def stage(bus: Bus, tiny_model: Path, tmp_path: Path) -> Stage:
    return Stage(bus, tiny_model, tmp_path)


@pytest.fixture
async def start_worker(nats_url: str, reward: RewardServer, tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Start a worker in this process; the event that is returned stops it. All are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(
            engine_url: str,
            name: str = "w1",
            groups: int = 8,
            drain_seconds: float = 20.0,
            reward_address: str = reward.address,
        ) -> asyncio.Event:
            settings = Settings((reward_address,), tmp_path / "cache" / f"http-{name}", groups, drain_seconds)
            return await stack.enter_async_context(_running(nats_url, engine_url, name, settings))

        yield start


@pytest.fixture
def start_process(nats_url: str, reward: RewardServer, tmp_path: Path) -> Iterator[StartProcess]:
    """Start `python -m services.rollout`; whatever still runs at the end is killed."""
    started: list[WorkerProcess] = []

    def start(engine_url: str, **environment: str) -> WorkerProcess:
        started.append(WorkerProcess(nats_url, engine_url, reward.address, tmp_path, **environment))
        return started[-1]

    yield start
    for worker in started:
        if worker.popen.poll() is None:
            worker.kill()


@asynccontextmanager
async def _running(nats_url: str, engine_url: str, name: str, settings: Settings) -> AsyncIterator[asyncio.Event]:
    bus = await Bus.connect(nats_url, name, deadline_seconds=10)
    engine, live, stop = Engine(engine_url), LiveStatus("redis://127.0.0.1:1/0"), asyncio.Event()
    worker = Worker(RunFinder(bus, name, get_logger("rollout").bind(worker=name)), engine, live, settings)
    serving = asyncio.create_task(worker.serve(stop))
    try:
        yield stop
    finally:
        stop.set()
        await serving
        await engine.close()
        await live.close()
        await bus.close()
