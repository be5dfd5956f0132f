"""Running a trainer against a real NATS server, in this process or as one of its own, and reading what it wrote."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from blake3 import blake3

from services.trainer.config import TrainerSettings
from services.trainer.process import run_rank
from sluice.transport.log import trainer_log
from sluice.transport.nats import Bus
from sluice.types import Checkpoint, Lineage, TrainerRecord, Version
from sluice.weights.fetch import fetch_version
from sluice.wire import subjects
from sluice.wire.codec import encode_rollout
from tests.servers import free_port
from tests.trainer.script import RUN, Script

OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets, and that a test's own rank has set before."""
PATIENCE = 120.0
"""Seconds after which a test that waits has failed."""


async def train(settings: TrainerSettings) -> int:
    """Run a trainer in this process and return its exit code."""
    return await asyncio.to_thread(run_rank, settings, False, structlog.get_logger())


@contextmanager
def trainer_process(settings: TrainerSettings) -> Iterator[subprocess.Popen[bytes]]:
    """A trainer in a process of its own; killed with -9 at the end."""
    variables = {
        "SLUICE_NATS_URL": settings.nats_url,
        "SLUICE_DATA_DIR": str(settings.data_dir),
        "SLUICE_LEASE_SECONDS": str(settings.lease_seconds),
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    process = subprocess.Popen([sys.executable, "-m", "services.trainer"], env={**os.environ, **variables})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def torchrun(ranks: int, settings: TrainerSettings) -> int:
    """Serve a run with ranks that torchrun starts and numbers, on this host; the exit code."""
    command = [sys.executable, "-m", "services.trainer.launch", "--standalone", "--nproc-per-node", str(ranks)]
    places = {"SLUICE_NATS_URL": settings.nats_url, "SLUICE_DATA_DIR": str(settings.data_dir), "OMP_NUM_THREADS": "1"}
    environ = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    return subprocess.run(command, env={**environ, **places}, check=False, timeout=2 * PATIENCE).returncode


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


async def records(bus: Bus) -> list[TrainerRecord]:
    return [entry.record for entry in await trainer_log(bus, RUN).read()]


async def lineages(bus: Bus) -> list[tuple[int, int]]:
    """(lineage, restored) of each start of a trainer."""
    return [(r.lineage, r.restored) for r in await records(bus) if isinstance(r, Lineage)]


async def versions(bus: Bus) -> dict[str, Version]:
    """VERSION records by name, in order."""
    return {str(r.version): r for r in await records(bus) if isinstance(r, Version)}


async def checkpoints(bus: Bus) -> list[Checkpoint]:
    return [r for r in await records(bus) if isinstance(r, Checkpoint)]


async def tensors(record: Version, cache: Path) -> dict[str, bytes]:
    """The published weights, every checksum verified."""
    folder, manifest = await fetch_version(record, cache, 10)
    return {t.name: (folder / t.file).read_bytes()[t.offset : t.offset + t.nbytes] for t in manifest.tensors}


async def events(bus: Bus, kind: str) -> list[dict[str, Any]]:
    """All events of a kind so far."""
    subject = subjects.event(RUN, kind)
    info = await bus.js.stream_info(subjects.EVENTS, subjects_filter=subject)
    subscription = await bus.js.subscribe(subject, ordered_consumer=True)
    return [
        json.loads((await subscription.next_msg()).data) for _ in range((info.state.subjects or {}).get(subject, 0))
    ]


def chain_by_hand(script: Script, k: int) -> str:
    """h(k) as the contract words it, from the stored bytes alone."""
    h = hashlib.blake2b(script.spec.config_hash.encode(), digest_size=32).digest()
    for batch in script.batches[:k]:
        digest = hashlib.blake2b(digest_size=32)
        for group in batch.groups:
            digest.update(group.n.to_bytes(8, "big"))
            for rollout in script.rollouts[group.n]:
                digest.update(blake3(encode_rollout(rollout)).digest(16))
        h = hashlib.blake2b(h + digest.digest(), digest_size=32).digest()
    return h.hex()
