"""Services that refuse to start, as real processes, and what they say while they do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.servers import BIN, wait_for_port

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


class Processes:
    """What a test has started; none of it outlives the test, however that ends."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def service(
        self, name: str, environment: dict[str, str], prepare: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        settings = {**plain, "CUDA_VISIBLE_DEVICES": "", "SLUICE_METRICS_PORT": "0", **environment}
        return self._start([sys.executable, "-m", f"services.{name}"], settings, prepare)

    def nats(self, port: int, *options: str) -> subprocess.Popen[str]:
        server = self._start([str(BIN / "nats-server"), "-a", "127.0.0.1", "-p", str(port), *options], None, None)
        wait_for_port(port)
        return server

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def _start(
        self, command: list[str], environment: dict[str, str] | None, prepare: Callable[[], None] | None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,  # noqa: PLW1509  # no other thread runs here
        )
        self._started.append(process)
        return process


def refused(service: str, process: subprocess.Popen[str]) -> str:
    """The last line of a service that ended with exit code 2, without the name; no traceback stands before it."""
    _, errors = process.communicate(timeout=SECONDS)
    *logged, last = errors.splitlines()
    assert process.returncode == 2, errors
    assert all(line.startswith("{") and '"exception"' not in line for line in logged), errors
    assert last.startswith(f"sluice-{service}: "), errors
    return last.removeprefix(f"sluice-{service}: ")


def readiness(port: int) -> int | None:
    """Status of /readyz; None while nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            return int(probe.makefile("rb").readline().split()[1])
    except (OSError, IndexError):
        return None
