"""Stored groups as a run's coordinator hears them; of those that it cannot read, their subject says which they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial

from nats.js.errors import NotFoundError

from sluice.errors import WireError
from sluice.transport.log import follow_stream, read_stream
from sluice.transport.nats import Bus
from sluice.types import Group
from sluice.wire import subjects
from sluice.wire.codec import decode_group


@dataclass(frozen=True, slots=True)
class UnreadableGroup:
    """What is stored as group n, and is damaged or of a newer format than this program knows."""

    n: int
    error: str


StoredGroup = Group | UnreadableGroup


async def stored_groups(bus: Bus, run_id: str, start: int) -> list[tuple[int, StoredGroup]]:
    """(sequence, group) of what a run's GROUPS hold now, from sequence `start` on."""
    found = []
    async for sequence, payload, _ in read_stream(bus, subjects.GROUPS, subjects.groups(run_id), start):
        if (group := await _decoded(bus, sequence, payload)) is not None:
            found.append((sequence, group))
    return found


async def follow_groups(bus: Bus, run_id: str, start: int) -> AsyncGenerator[tuple[int, StoredGroup], None]:
    """The same, and then what arrives, for ever."""
    async for sequence, payload, _ in follow_stream(bus, subjects.GROUPS, subjects.groups(run_id), start):
        if (group := await _decoded(bus, sequence, payload)) is not None:
            yield sequence, group


async def _decoded(bus: Bus, sequence: int, payload: bytes) -> StoredGroup | None:
    """None: it cannot be read, and is purged by now, so that nobody waits for it."""
    try:
        return decode_group(payload)
    except WireError as error:
        why = f"GROUPS sequence {sequence}: {error}"
    try:
        message = await bus.asking(subjects.GROUPS, partial(bus.js.get_msg, subjects.GROUPS, sequence))
    except NotFoundError:
        return None
    return UnreadableGroup(int(str(message.subject).rpartition(".")[2]), why)
