"""What a run has trained, recorded while it went, and trained once more by a trainer that nothing happens to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from sluice.cancellation import end_tasks
from sluice.local.stack import TORCH_ENVIRONMENT
from sluice.transport.log import follow_stream, last_sequence, read_stream, trainer_log
from sluice.transport.nats import Bus
from sluice.types import Version
from sluice.weights.fetch import fetch_version
from sluice.wire import subjects
from tests.servers import NatsServer, free_port

PATIENCE = 300.0
GAP = "rollouts.gap"
"""Stands where something was purged before it could be recorded, so that all later sequences stay as they were."""


class Recording:
    """Copies ROLLOUTS from the beginning, before a purge can take anything; LEDGER is never purged."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._bus, self._run_id = bus, run_id
        self._rollouts: dict[int, bytes] = {}
        self._task = asyncio.create_task(self._record())

    async def _record(self) -> None:
        async for sequence, payload, _ in follow_stream(self._bus, subjects.ROLLOUTS, subjects.rollouts(self._run_id)):
            self._rollouts[sequence] = payload

    async def end(self) -> None:
        await end_tasks([self._task])

    async def replay(self, folder: Path, ranks: int) -> str:
        """`equal` if an undisturbed trainer makes the same weights of the recorded batches, else what differs."""
        subject = subjects.rollouts(self._run_id)
        end = await last_sequence(self._bus, subjects.ROLLOUTS, subject)
        async with asyncio.timeout(PATIENCE):
            while max(self._rollouts, default=0) < end:
                await asyncio.sleep(0.1)
        server = NatsServer(folder / "nats")
        server.start()
        try:
            bus = await Bus.connect(server.url, "replay")
            await bus.ensure_streams()
            await self._copy(bus)
            code = await asyncio.to_thread(train, server.url, folder / "data", ranks)
            found = (
                await self._compare(bus, folder) if code == 0 else f"the trainer that replays ended with code {code}"
            )
            await bus.close()
            return found
        finally:
            server.kill()

    async def _copy(self, bus: Bus) -> None:
        """The same records and rollouts under the same sequences."""
        for sequence in range(1, max(self._rollouts, default=0) + 1):
            payload = self._rollouts.get(sequence)
            subject = GAP if payload is None else subjects.rollouts(self._run_id)
            assert await bus.publish(subject, payload or b"") == sequence
        subject = subjects.ledger(self._run_id)
        async for sequence, payload, _ in read_stream(self._bus, subjects.LEDGER, subject):
            assert await bus.publish(subject, payload) == sequence
        bucket = await bus.bucket(subjects.RUNS_BUCKET)
        await bucket.put(self._run_id, json.dumps({"state": "stopping", "created_at": 1.0}).encode())

    async def _compare(self, bus: Bus, folder: Path) -> str:
        disturbed, straight = await self._last(self._bus), await self._last(bus)
        if disturbed.version.number != straight.version.number or disturbed.chain != straight.chain:
            return f"{disturbed.version} has chain {disturbed.chain}, the replay {straight.version} {straight.chain}"
        names = await _tensors(disturbed, folder / "disturbed"), await _tensors(straight, folder / "straight")
        different = sorted(name for name in names[0] | names[1] if names[0].get(name) != names[1].get(name))
        return f"tensors differ: {different}" if different else "equal"

    async def _last(self, bus: Bus) -> Version:
        records = [entry.record for entry in await trainer_log(bus, self._run_id).read()]
        return [record for record in records if isinstance(record, Version)][-1]


async def _tensors(record: Version, cache: Path) -> dict[str, bytes]:
    folder, manifest = await fetch_version(record, cache, 30)
    return {t.name: (folder / t.file).read_bytes()[t.offset : t.offset + t.nbytes] for t in manifest.tensors}


def train(nats_url: str, data: Path, ranks: int) -> int:
    """Serve one run to its end with `ranks` processes; the worst of their exit codes."""
    variables = {
        **TORCH_ENVIRONMENT,
        "SLUICE_NATS_URL": nats_url,
        "SLUICE_DATA_DIR": str(data),
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    command = [sys.executable, "-m", "services.trainer"]
    processes = [
        subprocess.Popen(command, env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        return max(process.wait(PATIENCE) for process in processes)
    finally:
        for process in processes:
            process.kill()
