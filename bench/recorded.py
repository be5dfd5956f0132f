"""What a run's services have stored about it, with the server's times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import WaitTimeoutError
from sluice.transport.log import read_stream
from sluice.transport.nats import Bus
from sluice.types import Batch, Group, Issue, Version
from sluice.wire import subjects
from sluice.wire.codec import decode_group
from sluice.wire.records import decode_ledger, decode_trainer

LAST_EVENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Times are seconds since the epoch, as the server stored them."""

    groups: tuple[tuple[int, float, Group], ...]
    """(GROUPS sequence, time, group)."""
    batches: tuple[tuple[float, Batch], ...]
    issues: tuple[tuple[float, Issue], ...]
    published: Mapping[int, float]
    """Policy version number -> time."""
    steps: tuple[Mapping[str, Any], ...]
    """Step events, in order."""
    applied: tuple[tuple[float, Mapping[str, Any]], ...]
    """(time, weights_applied event)."""


async def read_run(bus: Bus, run_id: str) -> Recorded:
    """Everything about a run that has ended. Raises: WaitTimeoutError: the last step's event is missing."""
    ledger = [
        (time.timestamp(), decode_ledger(payload))
        async for _, payload, time in read_stream(bus, subjects.LEDGER, subjects.ledger(run_id))
    ]
    trainer = [
        (time.timestamp(), decode_trainer(payload))
        async for _, payload, time in read_stream(bus, subjects.TRAINER, subjects.trainer(run_id))
    ]
    groups = [
        (sequence, time.timestamp(), decode_group(payload))
        async for sequence, payload, time in read_stream(bus, subjects.GROUPS, subjects.groups(run_id))
    ]
    batches = tuple((time, record) for time, record in ledger if isinstance(record, Batch))
    events = await _events(bus, run_id, len(batches))
    return Recorded(
        groups=tuple(groups),
        batches=batches,
        issues=tuple((time, record) for time, record in ledger if isinstance(record, Issue)),
        published={record.version.number: time for time, record in trainer if isinstance(record, Version)},
        steps=tuple(event for _, event in events if event["kind"] == "step"),
        applied=tuple((time, event) for time, event in events if event["kind"] == "weights_applied"),
    )


async def _events(bus: Bus, run_id: str, steps: int) -> list[tuple[float, dict[str, Any]]]:
    """All events, once there are `steps` step events: the last one comes after the checkpoint that ends a run."""
    try:
        async with asyncio.timeout(LAST_EVENT_SECONDS):
            while True:
                events = [
                    (time.timestamp(), json.loads(payload))
                    async for _, payload, time in read_stream(bus, subjects.EVENTS, subjects.events(run_id))
                ]
                if sum(event["kind"] == "step" for _, event in events) >= steps:
                    return events
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise WaitTimeoutError("last_step_event", LAST_EVENT_SECONDS, "LAST_EVENT_SECONDS") from None
