"""Real servers for tests: each on a free port, with its own folder, ended by the fixture that started it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sluice.transport.nats import Bus

BIN = Path(sys.executable).parent
START_SECONDS = 20.0


class NatsServer:
    """A real nats-server with JetStream on a fixed free port, so that it can be killed and started again."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(BIN / "nats-server"), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.store)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for_port(port: int, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port} after {seconds} s")


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
