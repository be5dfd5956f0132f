"""Every run there is, read from LEDGER and TRAINER, and kept up to date with what was written since."""

from __future__ import annotations

import asyncio

from services.coordinator.history import RunHistory
from sluice.transport.log import FencedLog, ledger_log, trainer_log
from sluice.transport.nats import Bus
from sluice.types import LedgerRecord, TrainerRecord
from sluice.wire import subjects


class RunReader:
    """Read-only: any coordinator answers for any run, whoever holds it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[str, _Reading] = {}

    async def get(self, run_id: str) -> RunHistory | None:
        """The run as it stands now, or None if there is none of that id."""
        reading = self._known.get(run_id) or _Reading(self._bus, run_id)
        history = await reading.refresh()
        if history is not None:
            self._known[run_id] = reading
        return history

    async def all(self) -> list[RunHistory]:
        """All runs, newest first."""
        info = await self._bus.js.stream_info(subjects.LEDGER, subjects_filter=subjects.ledger("*"))
        ids = [subject.split(".", 1)[1] for subject in info.state.subjects or {}]
        found = [history for run_id in ids if (history := await self.get(run_id)) is not None]
        return sorted(found, key=lambda history: history.created_at, reverse=True)


class _Reading:
    """One run's subjects, read incrementally; callers at the same time share one read."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._history = RunHistory(run_id)
        self._ledger: FencedLog[LedgerRecord] = ledger_log(bus, run_id)
        self._trainer: FencedLog[TrainerRecord] = trainer_log(bus, run_id)
        self._reading = asyncio.Lock()

    async def refresh(self) -> RunHistory | None:
        async with self._reading:
            for entry in await self._ledger.read():
                self._history.fold_ledger(entry)
            for record in await self._trainer.read():
                self._history.fold_trainer(record)
        return self._history if self._ledger.last else None
