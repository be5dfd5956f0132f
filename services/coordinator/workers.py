"""Rollout workers and trainers that are there now, as they register themselves in the key-value store."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import nats
from nats.js.errors import APIError, KeyNotFoundError

from services.coordinator.staff import Beat, Staff, TrainerBeat
from sluice.transport.nats import Bus
from sluice.transport.queues import queue_depth
from sluice.views import WorkerView
from sluice.wire import subjects

LOOK_SECONDS = 10.0
"""The server forgets after this what it made for one look; by default it would after five minutes."""
GONE = ("DEL", "PURGE")
"""How the bucket says that an entry was taken out; one that ran out leaves nothing behind."""


async def registered_workers(bus: Bus, run_id: str = "*") -> list[WorkerView]:
    """The workers of one run, or of all, whose registration has not run out."""
    return (await _registrations(bus, run_id))[0]


async def _registrations(bus: Bus, run_id: str) -> tuple[list[WorkerView], set[str]]:
    """Who is there, and the names of those who have unregistered lately."""
    bucket = await bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
    told = await bucket.watch(f"{run_id}.*", inactive_threshold=LOOK_SECONDS)
    workers, left = list[WorkerView](), set[str]()
    try:
        async for entry in told:
            if entry is None:
                break  # what comes after is news
            name = entry.key.split(".", 1)[1]
            if entry.operation in GONE:
                left.add(name)
            else:
                workers.append(WorkerView.model_validate({"name": name, **json.loads(entry.value or b"{}")}))
    finally:
        await told.stop()  # type: ignore[no-untyped-call]  # not annotated there
    return workers, left


async def listen(bus: Bus, run_id: str, otherwise: Beat) -> Beat:
    """Who serves a run, and what the workers have to do; `otherwise` while the server is away."""
    try:
        workers, left = await _registrations(bus, run_id)
        trainer = await _trainer(bus, run_id)
        queued, delivered = await queue_depth(bus, run_id)
    except (APIError, TimeoutError, nats.errors.Error):
        return replace(otherwise, unheard_seconds=time.monotonic() - otherwise.heard_at)
    otherwise.workers_seen.note([worker.name for worker in workers], left)
    otherwise.trainers_seen.note([trainer.name] if trainer else [])
    return replace(
        otherwise,
        staff=Staff(tuple(workers), trainer),
        prompts_queued=queued,
        prompts_delivered=delivered,
        heard_at=time.monotonic(),
        unheard_seconds=0.0,
    )


async def _trainer(bus: Bus, run_id: str) -> TrainerBeat | None:
    bucket = await bus.bucket(subjects.TRAINERS_BUCKET, subjects.WORKER_TTL_SECONDS)
    try:
        told = json.loads((await bucket.get(run_id)).value or b"{}")
    except KeyNotFoundError:
        return None
    return TrainerBeat(str(told.get("name", "")), told.get("seconds", {}), told.get("waits", {}))
