"""Prompts as the API shows them: LEDGER folded by a curriculum, as the holder of the run folds it."""

from __future__ import annotations

import asyncio

from services.coordinator.curriculum import Curriculum, Difficulty, Sums
from services.coordinator.history import RunHistory
from services.coordinator.prompt_source import PromptSource, SourceShelf
from sluice.prompt_views import KeepRateView, PromptsView, PromptView
from sluice.transport.log import FencedLog, ledger_log
from sluice.transport.nats import Bus
from sluice.types import Batch, Drop, Issue, LedgerRecord


class PromptReader:
    """Reads a run's ledger once more when it is first asked, and then what is new."""

    def __init__(self, bus: Bus, sources: SourceShelf) -> None:
        self._bus, self._sources = bus, sources
        self._known: dict[str, _Reading] = {}
        self._reading = asyncio.Lock()

    async def read(self, history: RunHistory, after: int, limit: int) -> PromptsView:
        """Counts of the run's prompts, and the history of at most `limit` rows above `after`.

        Raises:
            ConfigError: the data set cannot be read, or is not what the run was created with.
        """
        source = await self._sources.of(history)
        async with self._reading:
            known = self._known.get(history.run_id)
            if known is None:
                known = _Reading(ledger_log(self._bus, history.run_id), source.curriculum(history.spec))
                self._known[history.run_id] = known
            await known.refresh()
        return _view(known.curriculum, source, after, limit)


class _Reading:
    def __init__(self, ledger: FencedLog[LedgerRecord], curriculum: Curriculum) -> None:
        self._ledger, self.curriculum = ledger, curriculum

    async def refresh(self) -> None:
        entries = await self._ledger.read()
        await asyncio.to_thread(self._fold, [entry.record for entry in entries])

    def _fold(self, records: list[LedgerRecord]) -> None:
        for record in records:
            if isinstance(record, Issue | Drop | Batch):
                self.curriculum.fold(record)


def _view(curriculum: Curriculum, source: PromptSource, after: int, limit: int) -> PromptsView:
    rows = [row for row in sorted(curriculum.rows) if row > after][:limit]
    by_group = sorted(curriculum.sums.items(), key=lambda entry: (entry[0][0], tuple(Difficulty).index(entry[0][1])))
    return PromptsView(
        rows=len(source.table),
        seen=sum(shown.scored > 0 for shown in curriculum.rows.values()),
        draws=curriculum.draws,
        skipped=sum(shown.skipped for shown in curriculum.rows.values()),
        by_lot={str(outcome): count for outcome, count in curriculum.lots.items() if count},
        keep_rates=tuple(_keep_rate(*key, sums) for key, sums in by_group),
        prompts=tuple(_prompt(curriculum, source, row) for row in rows),
    )


def _keep_rate(data_source: str, difficulty: Difficulty, sums: Sums) -> KeepRateView:
    return KeepRateView(
        data_source=data_source,
        difficulty=difficulty.value,
        scored=sums.scored,
        kept=sums.kept,
        keep_rate=sums.kept / sums.scored,
        corrected_keep_rate=sums.kept_weight / sums.scored_weight,
    )


def _prompt(curriculum: Curriculum, source: PromptSource, row: int) -> PromptView:
    shown = curriculum.rows[row]
    return PromptView(
        row=row,
        data_source=source.table.data_source(row),
        issued=shown.issued,
        skipped=shown.skipped,
        scored=shown.scored,
        kept=shown.kept,
        accuracy=shown.accuracy,
        streak=shown.streak,
        chance=curriculum.chance(row),
    )
