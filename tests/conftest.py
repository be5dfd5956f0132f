"""Real servers for tests: each on a free port, with its own folder, ended by the fixture that started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sluice.transport.nats import Bus
from tests.servers import NatsServer

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

LONGEST = ("trainer", "e2e", "faults", "bench", "observability", "rollout")
"""Folders that go first, so that neither of two test processes is left with a long one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A folder's tests run in one process and share its servers; the two processes take folder after folder."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_folder(item)))
    items.sort(key=lambda item: LONGEST.index(_folder(item)) if _folder(item) in LONGEST else len(LONGEST))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of this test's own: it may be killed."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connection with all streams in place."""
    bus = await Bus.connect(nats_url, "test", deadline_seconds=10)
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The tiny character model, made once by its seeded script and kept beside the project for later runs."""
    target = Path(__file__).parent.parent / "models" / "tiny"
    subprocess.run([sys.executable, "-m", "sluice.models.tiny", "--out", str(target)], check=True, capture_output=True)
    return target
