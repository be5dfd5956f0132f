"""Deleting a run that has ended: everything that NATS holds of it, and the word to trainers to remove its folders.

A mark in the bucket `deleted` comes first and LEDGER goes last: cut off anywhere, the run is still there, and deleting
it again finishes. The mark stays: it makes the answer the same every time, keeps the run's id from being used again,
and tells each trainer, which alone sees the folders, what to remove there.
"""

from __future__ import annotations

import json

from nats.js.errors import KeyNotFoundError, NotFoundError

from services.coordinator.api.problems import ConflictError
from services.coordinator.history import RunHistory
from services.coordinator.runs import RunReader
from sluice.transport.evaluations import remove_evaluation_consumer
from sluice.transport.nats import Bus
from sluice.transport.queues import remove_prompt_consumer
from sluice.types import RunState
from sluice.views import DeletionView
from sluice.wire import subjects


async def check_deletable(runs: RunReader, history: RunHistory, keep_checkpoints: bool) -> None:
    """Raises: ConflictError: the run has not ended, or a run forked from it has yet to load its checkpoint."""
    if not history.state.terminal:
        raise ConflictError(
            f"the run is {history.state}; only a run that has ended can be deleted: stop it first",
            field="state",
            value=str(history.state),
        )
    for other in [] if keep_checkpoints else await runs.forks_of(history.run_id):
        fork = await runs.get(other)
        if fork is not None and fork.state is RunState.QUEUED:
            raise ConflictError(
                f"run {other} was forked from it and has not begun; wait, stop that one first, or keep checkpoints",
                field="keep_checkpoints",
                value=False,
            )


async def delete_run(bus: Bus, run_id: str, keep_checkpoints: bool) -> DeletionView:
    """Remove a run, of which nobody writes any more; or what is left of one, if it was begun before."""
    deleted = await bus.bucket(subjects.DELETED_BUCKET)
    await deleted.put(run_id, json.dumps({"keep_checkpoints": keep_checkpoints}).encode())
    await remove_prompt_consumer(bus, run_id)
    await remove_evaluation_consumer(bus, run_id)
    await _forget(bus, subjects.RUNS_BUCKET, run_id)
    for stream, subject in subjects.of_run(run_id):
        async for attempt in bus.retrying():
            with attempt:
                await bus.js.purge_stream(stream, subject=subject)
    return DeletionView(id=run_id, keep_checkpoints=keep_checkpoints)


async def is_deleted(bus: Bus, run_id: str) -> bool:
    """Whether a run of this id was deleted, or is being deleted."""
    try:
        await (await bus.bucket(subjects.DELETED_BUCKET)).get(run_id)
    except KeyNotFoundError:
        return False
    return True


async def _forget(bus: Bus, bucket: str, key: str) -> None:
    try:
        await (await bus.bucket(bucket)).purge(key)
    except (KeyNotFoundError, NotFoundError):
        return
