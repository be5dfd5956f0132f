"""Going on with a run that has failed in training, without the batch that it failed on: a person decides.

LEDGER says it: its groups are dropped as `skipped_batch`. The trainer takes the batch as one without groups: no update
is made of it, and its policy version has the weights of the one before. Nobody holds a run that has failed, so any
coordinator may write; the fence lets one.
"""

from __future__ import annotations

import json

from services.coordinator.announcing import announce
from services.coordinator.api.problems import ConflictError, InvalidError
from services.coordinator.history import RunHistory
from sluice.errors import FencedError
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_event
from sluice.types import Batch, Drop, DropReason, LedgerRecord, RunState, StateChange


async def resume_without(bus: Bus, history: RunHistory, k: int, reason: str) -> None:
    """Record that batch k is skipped, and that the run goes on.

    Raises:
        ConflictError: the run has not failed in training, or somebody else changed it at the same time.
        InvalidError: batch k is in published weights, or was never emitted.
    """
    _check(history, k)
    log = ledger_log(bus, history.run_id)
    groups = _groups_of(k, [entry.record for entry in await log.read()])
    why = f"resumed without batch {k}" + (f": {reason}" if reason else "")
    try:
        if groups:  # none are left if this was cut off after its first record
            await log.append(Drop(groups, DropReason.SKIPPED_BATCH))
        await log.append(StateChange(RunState.RUNNING, why, json.dumps({"forgiven_lineage": history.lineages})))
    except FencedError:
        raise ConflictError(f"somebody else changed run {history.run_id} at the same time; look at it again") from None
    await announce(bus, history, RunState.RUNNING)
    await publish_event(bus, history.run_id, "state", {"state": str(RunState.RUNNING), "reason": why})


def _check(history: RunHistory, k: int) -> None:
    if history.state is not RunState.FAILED or history.training_failed is None:
        raise ConflictError(
            f"the run is {history.state}; a batch can be skipped only of a run that has failed because it could not be "
            f"trained",
            field="state",
            value=str(history.state),
        )
    first, end = history.training_steps, history.end_step
    if not first <= k < end:
        advice = "fork from a checkpoint before it" if k < first else f"batches up to {end - 1} were emitted"
        raise InvalidError(
            f"skip_batch = {k}: only batches that are in no published policy version can be skipped, "
            f"here {first} to {end - 1}; {advice}",
            field="skip_batch",
            value=k,
            limit=f"{first} to {end - 1}",
        )


def _groups_of(k: int, records: list[LedgerRecord]) -> tuple[int, ...]:
    """The groups of batch k that no record has skipped."""
    skipped = {n for r in records if isinstance(r, Drop) and r.reason is DropReason.SKIPPED_BATCH for n in r.groups}
    batches = {record.k: record for record in records if isinstance(record, Batch)}
    return tuple(group.n for group in batches[k].groups if group.n not in skipped)
