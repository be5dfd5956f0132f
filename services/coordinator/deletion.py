"""Deleting a run that has ended: everything that NATS holds of it, and the word to others to remove what they have.

A mark in the bucket `deleted` comes first and LEDGER goes last: cut off anywhere, the run is still there, and deleting
it again finishes. The mark stays: it makes the answer the same every time, keeps the run's id from being used again,
and tells each trainer, rollout worker and coordinator, which alone see their folders, what to remove there.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import nats
from nats.js.errors import APIError, KeyNotFoundError, NoKeysError, NotFoundError

from services.coordinator.api.problems import ConflictError
from services.coordinator.history import RunHistory
from services.coordinator.runs import RunReader
from sluice.telemetry import Logger
from sluice.transport.evaluations import remove_evaluation_consumer
from sluice.transport.log import last_sequence
from sluice.transport.nats import Bus
from sluice.transport.queues import remove_prompt_consumer
from sluice.types import RunState
from sluice.views import DeletionView
from sluice.wire import subjects

SWEEP_SECONDS = 60.0


async def check_deletable(runs: RunReader, history: RunHistory, keep_checkpoints: bool) -> None:
    """Raises: ConflictError: the run has not ended, or a run forked from it has yet to load its checkpoint."""
    if not history.state.terminal:
        if history.problem:
            raise ConflictError(
                f"whether the run has ended cannot be said: {history.problem}; ask a coordinator that can read it",
                field="problem",
            )
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
        await bus.purge(stream, subject)
    return DeletionView(id=run_id, keep_checkpoints=keep_checkpoints)


async def is_deleted(bus: Bus, run_id: str) -> bool:
    """Whether a run of this id was deleted, or is being deleted."""
    try:
        await (await bus.bucket(subjects.DELETED_BUCKET)).get(run_id)
    except KeyNotFoundError:
        return False
    return True


async def sweep_for_ever(bus: Bus, evaluations: Path | None, log: Logger) -> None:
    """Remove the evaluation files of deleted runs, at once and then each minute: of two coordinators, one is asked to
    delete a run and the other may have written its files."""
    while True:
        try:
            await sweep(bus, evaluations, log)
        except (APIError, TimeoutError, nats.errors.Error) as error:
            log.warning("evaluations_not_swept", error=str(error))
        await asyncio.sleep(SWEEP_SECONDS)


async def sweep(bus: Bus, evaluations: Path | None, log: Logger) -> None:
    """Remove the folders in `evaluations` (None: nothing is kept anywhere) whose runs are deleted, and no other."""
    if evaluations is None or not (left := await asyncio.to_thread(_folders, evaluations)):
        return
    for run_id in left & await _marked(bus):
        if not await last_sequence(bus, subjects.LEDGER, subjects.ledger(run_id)):  # else its deletion was cut off
            await asyncio.to_thread(_remove, evaluations / run_id, log)


def _folders(evaluations: Path) -> set[str]:
    return {folder.name for folder in evaluations.iterdir()} if evaluations.is_dir() else set()


def _remove(folder: Path, log: Logger) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("evaluations_not_removed", path=str(folder), error=str(error))
    else:
        log.info("deleted_run_removed", run=folder.name, path=str(folder))


async def _marked(bus: Bus) -> set[str]:
    """Ids of the runs that were deleted, or are being deleted."""
    try:
        return set(await (await bus.bucket(subjects.DELETED_BUCKET)).keys())
    except NoKeysError:
        return set()


async def _forget(bus: Bus, bucket: str, key: str) -> None:
    try:
        await (await bus.bucket(bucket)).purge(key)
    except (KeyNotFoundError, NotFoundError):
        return
