"""What a run has trained, recorded while it went, and trained once more by `sluice replay --train`'s own process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sluice.cancellation import end_tasks
from sluice.local.stack import TORCH_ENVIRONMENT
from sluice.transport.log import follow_stream, last_sequence, read_stream
from sluice.transport.nats import Bus
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
        """`equal` if undisturbed ranks make every version's weights again, bit for bit, else what differs."""
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
            await bus.close()
            return await asyncio.to_thread(train_again, server.url, self._run_id, ranks)
        finally:
            server.kill()

    async def _copy(self, bus: Bus) -> None:
        """The same records and events, and the rollouts under the same sequences: nothing is purged there."""
        for sequence in range(1, max(self._rollouts, default=0) + 1):
            payload = self._rollouts.get(sequence)
            subject = GAP if payload is None else subjects.rollouts(self._run_id)
            assert await bus.publish(subject, payload or b"") == sequence
        for stream, subject in (
            (subjects.LEDGER, subjects.ledger(self._run_id)),
            (subjects.TRAINER, subjects.trainer(self._run_id)),
            (subjects.EVENTS, subjects.event(self._run_id, "step")),
        ):
            async for _, payload, _ in read_stream(self._bus, stream, subject):
                await bus.publish(subject, payload)


def train_again(nats_url: str, run_id: str, ranks: int) -> str:
    """Replay with `ranks` processes, as many as the run had: only then are sums added up in the same order."""
    variables = {
        **TORCH_ENVIRONMENT,
        "SLUICE_NATS_URL": nats_url,
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    command = [sys.executable, "-m", "services.trainer", "replay", run_id, "--from", "0", "--json"]
    processes = [
        subprocess.Popen(
            command, env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode not in (0, 1) for process in processes) or not outputs[0]:
        return f"the ranks that replay ended with codes {[process.returncode for process in processes]}"
    return verdict(json.loads(outputs[0]))


def verdict(found: dict[str, Any]) -> str:
    """`equal`, or the versions that are not: nothing less than the same bytes and the same batches counts here."""
    rows = found["versions"]
    different = [row["version"] for row in rows if not (row["agrees"] and row["hash_equal"] and row["chain_equal"])]
    if different or len(rows) < 2:
        return f"of {len(rows)} versions these differ: {different}"
    return "equal"
