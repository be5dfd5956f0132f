"""What GROUPS and ROLLOUTS no longer need to hold once a checkpoint is stored, and how full they are."""

from __future__ import annotations

from functools import partial

from sluice.transport.archive import archive_groups
from sluice.transport.log import stored_up_to
from sluice.transport.nats import Bus
from sluice.types import Floors
from sluice.wire import subjects

NEARLY_FULL = 0.75
WORTH = 0.1
"""Of the room that is left: what a run's checkpoint gives back must be as much, or another run's is wanted."""


async def purge(bus: Bus, run_id: str, floors: Floors) -> None:
    """Remove this run's messages up to the floors, which nothing that may still be replayed lies below.

    Groups are archived first: what became of each can be asked until the run is deleted.
    """
    if floors.groups:
        await archive_groups(bus, run_id, floors.groups)
    for stream, subject, floor in _share(run_id, floors):
        if floor:
            await bus.purge(stream, subject, before=floor + 1)


async def room_is_wanted(bus: Bus, run_id: str, floors: Floors) -> bool:
    """Whether a checkpoint is due early, as ROLLOUTS or GROUPS is three quarters full and it would make room there.

    All runs share the streams: one that holds little of what fills them would save again and again for nothing. The
    fuller a stream is, the less is worth a checkpoint, so that none is left that could make room when it is full.

    Args:
        floors: of the newest batch: what lies below them nobody needs once it is saved.
    """
    for stream, subject, floor in _share(run_id, floors):
        info = await bus.asking(stream, partial(bus.js.stream_info, stream))
        limit, held = info.config.max_bytes or 0, info.state
        if limit > 0 and held.bytes >= NEARLY_FULL * limit:
            given_back = held.bytes * await stored_up_to(bus, stream, subject, floor) / held.messages
            if given_back > WORTH * (limit - held.bytes):
                return True
    return False


def _share(run_id: str, floors: Floors) -> tuple[tuple[str, str, int], ...]:
    """(stream, subjects, floor) of what a run holds and checkpoints purge."""
    return (
        (subjects.GROUPS, subjects.groups(run_id), floors.groups),
        (subjects.ROLLOUTS, subjects.rollouts(run_id), floors.rollouts),
    )
