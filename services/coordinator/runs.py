"""Every run there is, read from LEDGER and TRAINER, and kept up to date with what was written since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from nats.js.errors import NotFoundError

from services.coordinator.history import RunHistory
from services.coordinator.written import Written
from sluice.errors import ConfigError, WireError
from sluice.transport.log import Entry, FencedLog, Unreadable, last_sequence, trainer_log
from sluice.transport.nats import Bus
from sluice.types import LedgerRecord, RunCreated, TrainerRecord
from sluice.wire import subjects
from sluice.wire.records import decode_ledger

R = TypeVar("R")


class RunReader:
    """Read-only: any coordinator answers for any run, whoever holds it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.written = Written()
        """For those who write what is read here."""
        self._known: dict[str, _Reading] = {}
        self._parents: dict[str, str | None] = {}

    async def get(self, run_id: str) -> RunHistory | None:
        """The run as it stands now, or None if there is none of that id."""
        reading = self._known.get(run_id) or _Reading(self._bus, run_id, self.written)
        history = await reading.refresh()
        if history is None:
            self._known.pop(run_id, None)
        else:
            self._known[run_id] = reading
        return history

    def known(self, run_id: str) -> RunHistory | None:
        """The run as it was when it was read last, for when NATS is away; None if it never was."""
        reading = self._known.get(run_id)
        return reading.history if reading else None

    async def let_go(self, run_id: str, why: str) -> None:
        """Whoever held the run met a message of it that this program cannot read: none of its holders here will."""
        history = await self.get(run_id)
        if history is not None and not history.problem:  # else it is in the records, and may be gone one day
            self._known[run_id].beyond_us = why

    async def all(self) -> list[RunHistory]:
        """All runs, newest first."""
        found = [history for run_id in await self._ids() if (history := await self.get(run_id)) is not None]
        return sorted(found, key=lambda history: history.created_at, reverse=True)

    async def forks_of(self, run_id: str) -> list[str]:
        """Ids of the runs that started from a checkpoint of this one."""
        ids = await self._ids()
        for other in ids:
            if other not in self._parents:  # said by a run's first record, once and for all
                self._parents[other] = await self._parent(other)
        return sorted(other for other in ids if self._parents[other] == run_id)

    async def _ids(self) -> list[str]:
        info = await self._bus.js.stream_info(subjects.LEDGER, subjects_filter=subjects.ledger("*"))
        return [subject.split(".", 1)[1] for subject in info.state.subjects or {}]

    async def _parent(self, run_id: str) -> str | None:
        try:
            message = await self._bus.js.get_msg(subjects.LEDGER, 1, subjects.ledger(run_id), direct=True, next=True)
        except NotFoundError:  # deleted meanwhile
            return None
        try:
            created = decode_ledger(message.data or b"")
        except WireError:  # the run itself says so
            return None
        return created.origin.run_id if isinstance(created, RunCreated) and created.origin else None


class _Reading:
    """One run's subjects, read incrementally; callers at the same time share one read."""

    def __init__(self, bus: Bus, run_id: str, written: Written) -> None:
        self._bus = bus
        self.history = RunHistory(run_id)
        self._ledger: FencedLog[LedgerRecord] = written.log(bus, run_id)
        self._trainer: FencedLog[TrainerRecord] = trainer_log(bus, run_id)
        self._reading = asyncio.Lock()
        self.beyond_us = ""
        """Why something of the run that is no matter of decoding its records is too new for this program."""

    async def refresh(self) -> RunHistory | None:
        """The run's history, as far as its records can be read; None if there is no such run, or none any more."""
        async with self._reading:
            problems = [
                await self._follow(subjects.LEDGER, self._ledger, self.history.fold_ledger),
                await self._follow(subjects.TRAINER, self._trainer, self.history.fold_trainer),
            ]
            self.history.problem = "; ".join(dict.fromkeys(filter(None, problems)))
            if not self._ledger.last and not self.history.problem:
                return None
            if self.history.state.terminal and await self._is_deleted():
                return None
        return self.history

    async def _follow(self, stream: str, log: FencedLog[R], fold: Callable[[Entry[R]], None]) -> str:
        """Fold what is new, up to a record that cannot be read; why it cannot, or nothing."""
        if self.beyond_us:
            return self.beyond_us
        entries, unreadable = await log.read_on()
        for entry in entries:
            try:
                fold(entry)
            except (ConfigError, ValueError) as error:  # e.g. a spec with settings that we do not know
                self.beyond_us = f"{stream} sequence {entry.sequence}: {error}"
                unreadable = Unreadable(self.beyond_us, entry.time)
                break
        if unreadable is None:
            return ""
        if not self.history.has_spec:
            self.history.created_at = unreadable.time
        return unreadable.why

    async def _is_deleted(self) -> bool:
        """Only a run that has ended can be."""
        subject = subjects.ledger(self.history.run_id)
        return await last_sequence(self._bus, subjects.LEDGER, subject) < self._ledger.last
