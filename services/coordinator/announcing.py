"""What trainers and workers are told of the runs there are: an entry each in the `runs` bucket, and never state."""

from __future__ import annotations

import json
from typing import Any

from nats.js.errors import KeyNotFoundError

from services.coordinator.history import RunHistory
from sluice.transport.nats import Bus
from sluice.types import RunState
from sluice.wire import subjects


async def announce(bus: Bus, history: RunHistory, state: RunState | None = None) -> None:
    """Tell trainers and workers which runs there are; `state` is one that the history has yet to read."""
    entry: dict[str, Any] = {
        "state": str(state or history.state),
        "created_at": history.created_at.timestamp(),
        "config_hash": history.config_hash,
    }
    if (origin := history.origin) is not None:
        entry["origin"] = {"run": origin.run_id, "checkpoint": f"{origin.checkpoint.k}.{origin.checkpoint.lineage}"}
    bucket = await bus.bucket(subjects.RUNS_BUCKET)
    await bucket.put(history.run_id, json.dumps(entry).encode())


async def set_aside(bus: Bus, run_id: str, problem: str) -> None:
    """Let trainers and workers serve others until the run is announced anew: nobody can hold it now."""
    bucket = await bus.bucket(subjects.RUNS_BUCKET)
    try:
        entry = json.loads((await bucket.get(run_id)).value or b"{}")
    except KeyNotFoundError:
        return  # they were never told of it
    await bucket.put(run_id, json.dumps(entry | {"problem": problem}).encode())
