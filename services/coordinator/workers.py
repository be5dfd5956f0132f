"""Rollout workers that are there now, as they register themselves in the key-value store."""

from __future__ import annotations

import json

import nats
from nats.js.errors import APIError, KeyNotFoundError, NoKeysError

from sluice.transport.nats import Bus
from sluice.views import WorkerView
from sluice.wire import subjects


async def registered_workers(bus: Bus) -> list[WorkerView]:
    """All workers of all runs whose registration has not run out."""
    bucket = await bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
    try:
        keys = await bucket.keys()
    except NoKeysError:
        return []
    workers = []
    for key in keys:
        try:
            entry = await bucket.get(key)
        except KeyNotFoundError:
            continue  # it left while we looked
        name = key.split(".", 1)[1]
        workers.append(WorkerView.model_validate({"name": name, **json.loads(entry.value or b"{}")}))
    return workers


async def workers_of(bus: Bus, run_id: str, otherwise: int) -> int:
    """How many workers serve a run; `otherwise` while the server is away."""
    try:
        return sum(worker.run == run_id for worker in await registered_workers(bus))
    except (APIError, nats.errors.Error):
        return otherwise
