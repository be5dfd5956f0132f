"""A pool and replicas of the service with naughty verifiers, all real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from services.reward.pool import Pool, PoolSettings
from services.reward.worker import WorkerLimits
from sluice.types import ScoreItem

ALLOWED = ("naughty=naughty:obey", "graded=naughty:graded", "patient=naughty:patient")
TIMEOUT_SECONDS = 1.0

MakeItem = Callable[..., ScoreItem]


@pytest.fixture
def make_item() -> MakeItem:
    def make(response: str, ground_truth: str = "34", data_source: str = "math_dapo", **fields: object) -> ScoreItem:
        known = {"id": "1", "prompt": "p", "extra_info": "{}", "response_length": 3} | fields
        return ScoreItem(data_source=data_source, response=response, ground_truth=ground_truth, **known)  # type: ignore[arg-type]  # a test's own fields

    return make


@pytest.fixture
def naughty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find `naughty.py` as they would find a user's module: on the deployment's import path."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
async def pool(naughty_path: None) -> AsyncIterator[Pool]:
    """Two workers, a limit of a second, 512 MiB."""
    pool = Pool(PoolSettings(2, TIMEOUT_SECONDS, 10_000, WorkerLimits(512 << 20, 30.0, ALLOWED)))
    await pool.start()
    yield pool
    await pool.close()


class Replica:
    """One `python -m services.reward`."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        settings = {
            "SLUICE_REWARD_BIND": "127.0.0.1:0",
            "SLUICE_REWARD_WORKERS": "1",
            "SLUICE_REWARD_TIMEOUT_SECONDS": "1",
        }
        allowed = {"SLUICE_REWARD_VERIFIERS": ",".join(ALLOWED)}
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.reward"],
                env=os.environ | settings | allowed | environment,
                stderr=sink,
            )
        serving = self.event("serving")
        self.address = str(serving["address"])
        self.metrics_port = serving["metrics_port"]

    def event(self, name: str, seconds: float = 30.0) -> dict[str, object]:
        """The first log line of event `name`, waited for."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.log.read_text().splitlines():
                if line.startswith("{") and (entry := json.loads(line))["event"] == name:
                    return dict(entry)
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no event {name!r} within {seconds} s: {self.log.read_text()}")

    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


@pytest.fixture
def start_replica(naughty_path: None, tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    replicas: list[Replica] = []

    def start(**environment: str) -> Replica:
        replica = Replica(tmp_path / f"replica{len(replicas)}.log", environment)
        replicas.append(replica)
        return replica

    yield start
    for replica in replicas:
        if replica.process.poll() is None:
            replica.kill()
