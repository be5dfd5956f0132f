"""LEDGER as the trainer reads it: record by record, in order, from a thread that is not NATS's."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass

from services.trainer.bus import NatsThread
from sluice.transport.log import follow_stream
from sluice.transport.nats import Bus
from sluice.types import LedgerRecord
from sluice.wire import subjects
from sluice.wire.records import decode_ledger

ROOM = 1024
"""Records read ahead; a long ledger waits on the server, not in memory."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One record with its stream sequence and its bytes as stored."""

    sequence: int
    payload: bytes
    record: LedgerRecord


class LedgerFeed:
    """Follows one run's LEDGER from its first record on."""

    def __init__(self, nats: NatsThread, bus: Bus, run_id: str) -> None:
        self._entries: queue.Queue[LedgerEntry | BaseException | None] = queue.Queue()
        self._room = asyncio.Semaphore(ROOM)
        self._loop = nats.loop
        self._follower = asyncio.run_coroutine_threadsafe(self._follow(bus, run_id), nats.loop)

    def next(self, seconds: float) -> LedgerEntry | None:
        """The next record, or None when none came within `seconds` or before `wake`.

        Raises: whatever broke the subscription.
        """
        try:
            entry = self._entries.get(timeout=seconds)
        except queue.Empty:
            return None
        if entry is None:
            return None
        self._loop.call_soon_threadsafe(self._room.release)
        if isinstance(entry, BaseException):
            raise entry
        return entry

    def wake(self) -> None:
        """Let whoever waits for the next record look around. May be called from any thread."""
        self._entries.put(None)

    def close(self) -> None:
        self._follower.cancel()

    async def _follow(self, bus: Bus, run_id: str) -> None:
        try:
            async for sequence, payload, _ in follow_stream(bus, subjects.LEDGER, subjects.ledger(run_id)):
                await self._room.acquire()
                self._entries.put(LedgerEntry(sequence, payload, decode_ledger(payload)))
        except Exception as error:  # the one place: it is raised again where the reader waits
            self._entries.put(error)
