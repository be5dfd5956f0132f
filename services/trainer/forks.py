"""Checkpoints of a run that other runs, forked from them, have yet to begin with."""

from __future__ import annotations

import contextlib
import json

from nats.js.errors import KeyNotFoundError, NoKeysError

from sluice.transport.nats import Bus
from sluice.types import RunState
from sluice.wire import subjects


async def wanted_by_forks(bus: Bus, run_id: str) -> set[str]:
    """Names, `k.lineage`, of the run's checkpoints that queued forks start from: they stay until these have begun."""
    bucket = await bus.bucket(subjects.RUNS_BUCKET)
    wanted: set[str] = set()
    try:
        others = await bucket.keys()
    except NoKeysError:
        return wanted
    for other in others:
        with contextlib.suppress(KeyNotFoundError):  # deleted meanwhile
            entry = json.loads((await bucket.get(other)).value or b"{}")
            origin = entry.get("origin") or {}
            if origin.get("run") == run_id and entry["state"] == RunState.QUEUED:
                wanted.add(origin["checkpoint"])
    return wanted
