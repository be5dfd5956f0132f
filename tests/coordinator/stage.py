"""A real coordinator process on a real server; the test itself plays the trainer and the workers, record by record."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.transport.log import ledger_log, trainer_log
from sluice.transport.nats import Bus
from sluice.transport.queues import PromptQueue, store_group
from sluice.types import (
    Batch,
    Checkpoint,
    FinishReason,
    Group,
    GroupStatus,
    LedgerRecord,
    Lineage,
    PolicyVersion,
    Prompt,
    RolloutSummary,
    VerdictKind,
    Version,
)
from sluice.wire import subjects
from tests.servers import free_port, wait_for_port

ROOT = Path(__file__).parent.parent.parent


def spec(**changes: Any) -> RunSpec:
    """configs/tiny.toml with small batches, and `section__field=value` changes."""
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["rollout"]["group_size"] = 2
    fields["trainer"] |= {"prompts_per_step": 4, "total_steps": 4}
    for path, value in changes.items():
        section, field = path.split("__")
        fields[section][field] = value
    return parse_run_spec(fields)


class Coordinator:
    """One replica, as a process of its own."""

    def __init__(
        self, nats_url: str, environment: Mapping[str, str] = MappingProxyType({}), log: Path | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = os.environ | {
            "SLUICE_NATS_URL": nats_url,
            "SLUICE_REDIS_URL": "redis://127.0.0.1:1/0",  # nobody listens: live status may vanish
            "SLUICE_API_PORT": str(self.port),
            "SLUICE_LEASE_SECONDS": "2",
        }
        command = [sys.executable, "-m", "services.coordinator"]
        output = None if log is None else log.open("ab")
        self.process = subprocess.Popen(command, cwd=ROOT, env={**settings, **environment}, stderr=output)
        wait_for_port(self.port)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Stage:
    """Plays the trainer and the workers of one run."""

    def __init__(self, bus: Bus, run_id: str, seed: int = 0, keep: float = 0.7, first_step: int = 0) -> None:
        self.bus, self.run_id, self.keep = bus, run_id, keep
        self.rng = random.Random(seed)
        self.trainer = trainer_log(bus, run_id)
        self.first_step = self.trained = first_step
        self.sequence = 0
        self.verifier_error = ""

    async def join(self) -> None:
        """A trainer publishes the first version and a worker registers."""
        await self.trainer.append(Lineage(1, "test", self.first_step))
        await self.publish(self.first_step)
        bucket = await self.bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
        await bucket.put(f"{self.run_id}.test", json.dumps({"run": self.run_id}).encode())

    async def publish(self, number: int) -> None:
        await self.trainer.append(Version(PolicyVersion(number, 1), "file:///nowhere", "", ""))

    async def work(self, most: int = 1000) -> list[Prompt]:
        """Pull what is offered and store a group for each; returns the prompts."""
        queue = await PromptQueue.join(self.bus, self.run_id)
        done: list[Prompt] = []
        while len(done) < most and (deliveries := await queue.pull(min(16, most - len(done)), wait_seconds=0.4)):
            for delivery in deliveries:
                await store_group(self.bus, self.group(delivery.prompt))
                await delivery.ack()
                done.append(delivery.prompt)
        return done

    def group(self, prompt: Prompt) -> Group:
        accs = (1.0, 0.0) if self.rng.random() < self.keep else (1.0, 1.0)
        version = PolicyVersion(prompt.min_version, 1)
        rollouts = []
        for acc in accs:
            self.sequence += 1
            rollouts.append(
                RolloutSummary(
                    (self.sequence,), b"", VerdictKind.SCORED, acc, acc, 0.0, 3, FinishReason.STOP, version, version
                )
            )
        status = GroupStatus.VERIFIER_FAILED if self.verifier_error else GroupStatus.SCORED
        made = Group(prompt.run_id, prompt.n, "a", status, tuple(rollouts), "w", "e", 0, 0.1, 0.1)
        return replace(made, error=self.verifier_error)

    async def train(self) -> int:
        """Publish a version for every batch not trained yet; returns how many."""
        new = self.first_step + len(await self.batches()) - self.trained
        for _ in range(new):
            self.trained += 1
            await self.publish(self.trained)
        return new

    async def checkpoint(self) -> None:
        await self.trainer.append(Checkpoint(self.trained, 1, f"/nowhere/{self.trained}.1", "", ""))

    async def ledger(self) -> list[LedgerRecord]:
        return [entry.record for entry in await ledger_log(self.bus, self.run_id).read()]

    async def batches(self) -> list[Batch]:
        return [record for record in await self.ledger() if isinstance(record, Batch)]


async def create(coordinator: Coordinator, run: RunSpec, key: str | None = None) -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    async with httpx.AsyncClient(base_url=coordinator.url, timeout=30) as client:
        answer = await client.post("/v1/runs", json=run.model_dump(mode="json"), headers=headers)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())


async def get(coordinator: Coordinator, path: str) -> Any:
    async with httpx.AsyncClient(base_url=coordinator.url, timeout=30) as client:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def post(coordinator: Coordinator, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=coordinator.url, timeout=30) as client:
        return await client.post(path)


async def wait_for_state(coordinator: Coordinator, run_id: str, state: str, seconds: float = 20) -> dict[str, Any]:
    view: dict[str, Any] = {}
    try:
        async with asyncio.timeout(seconds):
            while (view := await get(coordinator, f"/v1/runs/{run_id}"))["state"] != state:
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"run is {view.get('state')!r} ({view.get('reason')!r}), not {state!r}") from None
    return view
