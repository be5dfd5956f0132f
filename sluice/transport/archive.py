"""ARCHIVE: groups as they were stored, many to a message, from before their purge until the run is deleted.

GROUPS is what the run works with, so it is purged; what a group was stays to be asked for. A message holds neighbours
of GROUPS, and its subject says between which issue numbers they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import zstandard
from nats.js.errors import APIError, NotFoundError

from sluice.errors import WireError
from sluice.telemetry import get_logger
from sluice.transport.log import WRONG_LAST_SEQUENCE, read_stream
from sluice.transport.nats import Bus
from sluice.types import Group
from sluice.wire import subjects
from sluice.wire.codec import decode_group

MOST_GROUPS, MOST_BYTES = 256, 512 << 10
"""Of one message, before compression."""
_LENGTH = struct.Struct(">I")


async def archive_groups(bus: Bus, run_id: str, floor: int) -> None:
    """Copy the run's GROUPS up to sequence `floor`, before they are purged.

    One that cannot be read is left out: nobody could show it.
    Whoever was cut off does it again: full messages are the same again, and the server takes them once.
    """
    part: list[tuple[int, bytes]] = []
    async for sequence, payload, _ in read_stream(bus, subjects.GROUPS, subjects.groups(run_id)):
        if sequence > floor:
            break
        try:
            n = decode_group(payload).n
        except WireError as error:
            get_logger("nats").error("group_not_archived", run=run_id, sequence=sequence, error=str(error))
            continue
        full = len(part) >= MOST_GROUPS or sum(len(held) for _, held in part) + len(payload) > MOST_BYTES
        if part and full:
            await _store(bus, run_id, part)
            part = []
        part.append((n, payload))
    if part:
        await _store(bus, run_id, part)


async def _store(bus: Bus, run_id: str, part: Sequence[tuple[int, bytes]]) -> None:
    numbers = [n for n, _ in part]
    packed = b"".join(_LENGTH.pack(len(payload)) + payload for _, payload in part)
    subject = subjects.archived(run_id, min(numbers), max(numbers))
    try:
        await bus.publish(
            subject, zstandard.ZstdCompressor().compress(packed), {"Nats-Expected-Last-Subject-Sequence": "0"}
        )
    except APIError as error:
        if error.err_code != WRONG_LAST_SEQUENCE:
            raise


class Archive:
    """Reads one run's archive; what it has looked into it remembers, so make one for each question."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._bus, self._run_id = bus, run_id
        self._parts: list[tuple[int, int, str]] | None = None
        self._opened: dict[str, dict[int, Group]] = {}

    async def group(self, n: int) -> Group | None:
        """Group n as it was stored, or None if it is not archived: it is still in GROUPS, or was never stored."""
        if self._parts is None:
            self._parts = sorted(await self._list())
        for first, last, subject in self._parts:
            if first <= n <= last:
                if subject not in self._opened:
                    self._opened[subject] = await self._open(subject)
                if found := self._opened[subject].get(n):
                    return found
        return None

    async def _list(self) -> list[tuple[int, int, str]]:
        info = await self._bus.js.stream_info(subjects.ARCHIVE, subjects_filter=subjects.archive(self._run_id))
        names = list(info.state.subjects or {})
        return [(int(first), int(last), name) for name in names for _, _, first, last in [name.split(".")]]

    async def _open(self, subject: str) -> dict[int, Group]:
        try:
            message = await self._bus.js.get_last_msg(subjects.ARCHIVE, subject)
        except NotFoundError:  # deleted meanwhile
            return {}
        groups = [
            decode_group(payload) for payload in _unpack(zstandard.ZstdDecompressor().decompress(message.data or b""))
        ]
        return {group.n: group for group in reversed(groups)}  # the first of an n is the group


def _unpack(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size + length
        yield packed[at - length : at]
