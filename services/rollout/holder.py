"""Notices that nobody gives a worker anything to do because NATS is away, or because no coordinator holds the run."""

from __future__ import annotations

import asyncio

from nats.js.errors import BucketNotFoundError, KeyNotFoundError

from services.rollout import metrics
from services.rollout.run import NATS_FAULTS, Run
from sluice.wire import subjects

LOOK_SECONDS = 2.0


async def watch_holder(run: Run) -> None:
    """For ever: while one of the two is missing, that is a named wait of this worker.

    consumes:     the run's lease
    produces:     the waits "nats" and "coordinator", for the log and the metric
    waits for:    NATS to answer, a coordinator that holds the run
    unblocked by: whoever starts them
    on failure:   nothing depends on it
    """
    while True:
        missing = await _missing(run)
        if missing is not None:
            with metrics.waiting(run.id, missing):
                while await _missing(run) == missing:
                    await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)


async def _missing(run: Run) -> str | None:
    """What is not there now. A lease runs out by itself when its holder is frozen or dead."""
    try:
        leases = await run.bus.js.key_value(subjects.LEASES_BUCKET)
        await leases.get(f"coordinator.{run.id}")
    except (KeyNotFoundError, BucketNotFoundError):
        return "coordinator"
    except NATS_FAULTS:
        return "nats"
    return None
