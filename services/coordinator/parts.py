"""Which part a run waits for, beyond what its own state says: what each worker and the trainer say of themselves, and
who has fallen silent."""

from __future__ import annotations

from collections.abc import Iterator

from services.coordinator.staff import Beat
from sluice.config import RunSpec
from sluice.views import WaitView, WorkerView

NAMED_AFTER_SECONDS = 5.0
"""What takes less is the usual course of things."""
SILENT_SECONDS = 60.0
"""A worker that is silent for longer is an alarm."""
STORE_SECONDS = 60.0
"""A worker's own deadline for this may be another: SLUICE_NATS_DEADLINE_SECONDS."""
OF_A_WORKER = {
    "generate": "engine {engine} to finish a group of worker {name}",
    "reward": "a reward server to judge a group of worker {name}",
    "weight_sync": "engine {engine} of worker {name} to load new weights",
    "policy_version": "engine {engine} of worker {name} to serve the version that a prompt asks for",
    "store": "NATS to store a group of worker {name}, or room for it in ROLLOUTS or GROUPS",
    "engine_gate": "a prompt that has engine {engine} of worker {name} for itself",
    "engine_alone": "others to leave engine {engine} of worker {name}",
}
"""Waits of workers that somebody else has to end; the others are those of a worker that has nothing to do."""
OF_THE_TRAINER = {
    "rollouts": "NATS to give trainer {name} the rollouts of a batch",
    "trainer record": "NATS to store a record of trainer {name}",
    "checkpoint": "the disk of trainer {name}",
    "purge": "NATS to purge what trainer {name} has trained",
}


def waits_of_parts(spec: RunSpec, beat: Beat) -> list[WaitView]:
    """The longest wait of each name, of all who wait."""
    longest: dict[str, WaitView] = {}
    for wait in (*_of_workers(spec, beat), *_of_trainer(spec, beat), *_of_the_silent(spec, beat)):
        if wait.name not in longest or wait.seconds > longest[wait.name].seconds:
            longest[wait.name] = wait
    return list(longest.values())


def _of_workers(spec: RunSpec, beat: Beat) -> Iterator[WaitView]:
    for worker in beat.staff.workers:
        for name, seconds in worker.waits.items():
            if name in OF_A_WORKER and seconds >= NAMED_AFTER_SECONDS:
                yield _of_worker(spec, worker, name, seconds)


def _of_worker(spec: RunSpec, worker: WorkerView, name: str, seconds: float) -> WaitView:
    limits = spec.deadlines
    deadline = {
        "reward": spec.reward.deadline_seconds,
        "weight_sync": limits.weight_sync_seconds,
        "policy_version": limits.weight_sync_seconds,
        "store": STORE_SECONDS,
    }.get(name, limits.generate_seconds)
    waits_for = OF_A_WORKER[name].format(engine=worker.engine, name=worker.name)
    return WaitView(name=name, waits_for=waits_for, seconds=seconds, deadline_seconds=deadline)


def _of_trainer(spec: RunSpec, beat: Beat) -> Iterator[WaitView]:
    trainer, limit = beat.staff.trainer, spec.deadlines.no_progress_seconds
    for name, seconds in trainer.waits.items() if trainer else ():
        if trainer and name in OF_THE_TRAINER and seconds >= NAMED_AFTER_SECONDS:
            waits_for = OF_THE_TRAINER[name].format(name=trainer.name)
            yield WaitView(name=name, waits_for=waits_for, seconds=seconds, deadline_seconds=limit)


def _of_the_silent(spec: RunSpec, beat: Beat) -> Iterator[WaitView]:
    """NATS is named alone: while it is away, nobody can be heard."""
    if beat.unheard_seconds:
        yield WaitView(
            name="nats", waits_for="NATS to answer", seconds=beat.unheard_seconds, deadline_seconds=SILENT_SECONDS
        )
        return
    for name, seconds in beat.workers_seen.silent().items():
        yield WaitView(
            name="rollout_worker",
            waits_for=f"worker {name}, which is silent: others get its prompts",
            seconds=seconds,
            deadline_seconds=SILENT_SECONDS,
        )
    for name, seconds in beat.trainers_seen.silent().items():
        limit = spec.deadlines.no_progress_seconds
        yield WaitView(
            name="trainer", waits_for=f"trainer {name}, which is silent", seconds=seconds, deadline_seconds=limit
        )
