"""What GROUPS and ROLLOUTS no longer need to hold once a checkpoint is stored, and how full they are."""

from __future__ import annotations

from functools import partial

from sluice.transport.archive import archive_groups
from sluice.transport.nats import Bus
from sluice.types import Floors
from sluice.wire import subjects

NEARLY_FULL = 0.75


async def purge(bus: Bus, run_id: str, floors: Floors) -> None:
    """Remove this run's messages up to the floors, which nothing that may still be replayed lies below.

    Groups are archived first: what became of each can be asked until the run is deleted.
    """
    if floors.groups:
        await archive_groups(bus, run_id, floors.groups)
    for stream, subject, floor in (
        (subjects.GROUPS, subjects.groups(run_id), floors.groups),
        (subjects.ROLLOUTS, subjects.rollouts(run_id), floors.rollouts),
    ):
        if floor:
            async for attempt in bus.retrying(subject):
                with attempt:
                    # The server keeps the sequence that it is given and what comes after.
                    await bus.js.purge_stream(stream, seq=floor + 1, subject=subject)


async def nearly_full(bus: Bus) -> bool:
    """Whether ROLLOUTS or GROUPS is three quarters full, so that a checkpoint is due early to make room."""
    for stream in (subjects.ROLLOUTS, subjects.GROUPS):
        info = await bus.asking(stream, partial(bus.js.stream_info, stream))
        if (limit := info.config.max_bytes or 0) > 0 and info.state.bytes >= NEARLY_FULL * limit:
            return True
    return False
