"""Real servers and processes for tests, each on a free port and with its own folder."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.local.binaries import valkey_server

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
START_SECONDS = 20.0


class NatsServer:
    """A real nats-server with JetStream on a fixed free port, so that it can be killed and started again."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        command = [str(BIN / "nats-server"), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.store)]
        command += arguments
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port)

    def kill(self) -> None:
        """kill -9. What its consumers had delivered may be forgotten: acks of it get no answer then."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, as an operator stops it: everything is on disk when it ends."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(START_SECONDS)


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


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """A Redis-protocol server that keeps nothing; its address."""
    port = free_port()
    command = [valkey_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with _running(subprocess.Popen(command, stdout=subprocess.DEVNULL), port):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def simulated_engine(model: Path, latency: str) -> Iterator[str]:
    """The simulated engine, right and wrong in turn; its address."""
    port = free_port()
    command = [sys.executable, "-m", "bench.simulated.engine", "--model", str(model), "--port", str(port)]
    with _running(subprocess.Popen([*command, "--latency", latency, "--keep-rate", "1"], cwd=ROOT), port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(process: subprocess.Popen[bytes], port: int) -> Iterator[None]:
    try:
        wait_for_port(port)
        yield
    finally:
        process.kill()
        process.wait()
