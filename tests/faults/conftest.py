"""What faults are done to: a proxy before NATS, and coordinators that may be killed or frozen."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import torch

from services.trainer.zero import join_ranks
from tests.coordinator.stage import Coordinator
from tests.faults.proxy import Proxy
from tests.servers import free_port

StartCoordinator = Callable[..., Coordinator]


@pytest.fixture
async def proxy(nats_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(nats_url)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture(scope="session")
def trainer_here() -> None:
    """Lets a trainer run in this process, once other tests have not made it able to."""
    if not torch.distributed.is_initialized():
        torch.set_num_threads(1)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        os.environ.update({**address, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
        join_ranks(0, 1, on_gpu=False, seconds=60)


@pytest.fixture
def start_coordinator(nats_url: str, tiny_model: object) -> Iterator[StartCoordinator]:
    """Start a replica, at a NATS address and with variables of its own; all are killed at the end, frozen or not."""
    started: list[Coordinator] = []

    def start(url: str = nats_url, **environment: str) -> Coordinator:
        started.append(Coordinator(url, environment))
        return started[-1]

    yield start
    for coordinator in started:
        coordinator.kill()
