"""Says that this trainer is there and where its time goes: in the key-value store, for people to look at."""

from __future__ import annotations

import asyncio
import json

import nats
from nats.js.errors import APIError

from services.trainer import metrics
from sluice.transport.nats import Bus
from sluice.wire import subjects

REFRESH_SECONDS = 2.0


async def keep_present(bus: Bus, run_id: str, name: str) -> None:
    """Renew the registration until cancelled; it then runs out by itself. A server that is away is not waited for."""
    while True:
        told = {"name": name, "seconds": metrics.time_spent(), "waits": metrics.waits()}
        payload = json.dumps(told).encode()
        try:
            bucket = await bus.bucket(subjects.TRAINERS_BUCKET, subjects.WORKER_TTL_SECONDS)
            await bucket.put(run_id, payload)
        except (APIError, TimeoutError, nats.errors.Error):
            pass  # the next beat comes soon, and nothing depends on this one
        await asyncio.sleep(REFRESH_SECONDS)
