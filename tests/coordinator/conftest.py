"""A coordinator that the tests of a file share, and one that a test has to itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sluice.transport.nats import Bus
from tests.coordinator.stage import Coordinator
from tests.servers import NatsServer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SLUICE_DATA_DIR of `coordinator`."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[tuple[NatsServer, Coordinator]]:
    """One server and one coordinator for all tests of a file that let both live; every test has runs of its own."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    coordinator = Coordinator(server.url, {"SLUICE_DATA_DIR": str(data)})
    yield server, coordinator
    coordinator.kill()
    server.kill()


@pytest.fixture
def coordinator(place: tuple[NatsServer, Coordinator]) -> Coordinator:
    return place[1]


@pytest.fixture
async def shared_bus(place: tuple[NatsServer, Coordinator]) -> AsyncIterator[Bus]:
    """A connection to the server of `coordinator`."""
    bus = await Bus.connect(place[0].url, "test", deadline_seconds=10)
    yield bus
    await bus.close()


@pytest.fixture
async def alone(nats_server: NatsServer) -> AsyncIterator[tuple[list[Coordinator], Bus]]:
    """Replicas that the test may kill or freeze, on a server of its own."""
    started = [Coordinator(nats_server.url)]
    bus = await Bus.connect(nats_server.url, "test", deadline_seconds=10)
    yield started, bus
    await bus.close()
    for coordinator in started:
        coordinator.thaw()
        coordinator.kill()
