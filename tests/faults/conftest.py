"""What faults are done to: a proxy before NATS, and coordinators that may be killed or frozen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.coordinator.stage import Coordinator
from tests.faults.proxy import Proxy

StartCoordinator = Callable[[str], Coordinator]


@pytest.fixture
async def proxy(nats_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(nats_url)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
def start_coordinator(nats_url: str, tiny_model: object) -> Iterator[StartCoordinator]:
    """Start a replica at the NATS address given; what still runs at the end is killed, frozen or not."""
    started: list[Coordinator] = []

    def start(url: str = nats_url) -> Coordinator:
        started.append(Coordinator(url))
        return started[-1]

    yield start
    for coordinator in started:
        coordinator.kill()
