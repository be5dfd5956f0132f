"""What faults are done to: a proxy before NATS, and coordinators that may be killed or frozen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.coordinator.stage import Coordinator
from tests.faults.proxy import Proxy

StartCoordinator = Callable[..., Coordinator]


@pytest.fixture
async def proxy(nats_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(nats_url)
    await proxy.start()
    yield proxy
    await proxy.stop()


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
