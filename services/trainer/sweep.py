"""Folders of deleted runs, removed by the trainer, which sees them, while it waits for a run."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from nats.js.errors import KeyNotFoundError, NoKeysError

from sluice.telemetry import Logger
from sluice.transport.log import last_sequence
from sluice.transport.nats import Bus
from sluice.weights.manifest import adapters_run
from sluice.wire import subjects


async def sweep(bus: Bus, weights: Path, checkpoints: Path, log: Logger) -> None:
    """Remove what the deleted runs left in these two folders; checkpoints only of those that were not to keep them."""
    for run_id in await asyncio.to_thread(_left, weights, checkpoints):
        mark = await _mark(bus, run_id)
        if mark is None or await last_sequence(bus, subjects.LEDGER, subjects.ledger(run_id)):
            continue  # it is there, or is only about to be deleted
        # The run's own folder of weights goes last: it is what the run is found by.
        folders = [] if mark["keep_checkpoints"] else [checkpoints / run_id]
        for folder in (*folders, weights / adapters_run(run_id), weights / run_id):
            if await asyncio.to_thread(folder.is_dir):
                await asyncio.to_thread(shutil.rmtree, folder)
                log.info("deleted_run_removed", run=run_id, path=str(folder))


def _left(weights: Path, checkpoints: Path) -> list[str]:
    """Ids of the runs that have a folder here."""
    return sorted({folder.name for root in (weights, checkpoints) if root.is_dir() for folder in root.iterdir()})


async def _mark(bus: Bus, run_id: str) -> dict[str, bool] | None:
    try:
        entry = await (await bus.bucket(subjects.DELETED_BUCKET)).get(run_id)
    except (KeyNotFoundError, NoKeysError):
        return None
    return dict(json.loads(entry.value or b"{}"))
