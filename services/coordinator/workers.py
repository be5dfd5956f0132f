"""Rollout workers and trainers that are there now, as they register themselves in the key-value store."""

from __future__ import annotations

import json

import nats
from nats.js.errors import APIError, KeyNotFoundError

from services.coordinator.staff import Beat, Staff, TrainerBeat
from sluice.transport.nats import Bus
from sluice.transport.queues import queue_depth
from sluice.views import WorkerView
from sluice.wire import subjects


async def registered_workers(bus: Bus, run_id: str = "*") -> list[WorkerView]:
    """The workers of one run, or of all, whose registration has not run out."""
    bucket = await bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
    present = await bucket.watch(f"{run_id}.*", ignore_deletes=True)
    workers = []
    try:
        async for entry in present:
            if entry is None:
                break  # what comes after is news
            name = entry.key.split(".", 1)[1]
            workers.append(WorkerView.model_validate({"name": name, **json.loads(entry.value or b"{}")}))
    finally:
        await present.stop()  # type: ignore[no-untyped-call]  # not annotated there
    return workers


async def listen(bus: Bus, run_id: str, otherwise: Beat) -> Beat:
    """Who serves a run, and what the workers have to do; `otherwise` while the server is away."""
    try:
        workers = await registered_workers(bus, run_id)
        staff = Staff(tuple(workers), await _trainer(bus, run_id))
        queued, delivered = await queue_depth(bus, run_id)
    except (APIError, TimeoutError, nats.errors.Error):
        return otherwise
    return Beat(staff, queued, delivered)


async def _trainer(bus: Bus, run_id: str) -> TrainerBeat | None:
    bucket = await bus.bucket(subjects.TRAINERS_BUCKET, subjects.WORKER_TTL_SECONDS)
    try:
        told = json.loads((await bucket.get(run_id)).value or b"{}")
    except KeyNotFoundError:
        return None
    return TrainerBeat(str(told.get("name", "")), told.get("seconds", {}))
