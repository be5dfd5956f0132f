"""The evaluations of any run, for any coordinator that is asked: read from their records, and kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.coordinator.history import RunHistory
from sluice.evaluation.history import EvaluationHistory
from sluice.evaluation_views import RunEvaluationView
from sluice.transport.evaluations import evaluations_log, stored_evaluation_groups
from sluice.transport.nats import Bus


class EvaluationReader:
    """Read-only; callers at the same time share one read."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[str, _Reading] = {}

    async def list(self, run: RunHistory) -> Sequence[RunEvaluationView]:
        """The evaluations of a run, in the order in which they began or were passed over."""
        if not run.spec.evaluation.sets:
            return []
        reading = self._known.setdefault(run.run_id, _Reading(self._bus, run))
        history = await reading.refresh()
        return [await self._with_progress(run, view) for view in history.views.values()]

    async def _with_progress(self, run: RunHistory, view: RunEvaluationView) -> RunEvaluationView:
        if view.state != "running":
            return view
        if run.state.terminal:
            return view.model_copy(update={"state": "incomplete", "reason": "the run ended before it was settled"})
        done = await stored_evaluation_groups(self._bus, run.run_id, view.number)
        return view.model_copy(update={"prompts_done": len(done)})


class _Reading:
    def __init__(self, bus: Bus, run: RunHistory) -> None:
        self._history = EvaluationHistory(run.spec.evaluation)
        self._records = evaluations_log(bus, run.run_id)
        self._reading = asyncio.Lock()

    async def refresh(self) -> EvaluationHistory:
        async with self._reading:
            for entry in await self._records.read():
                self._history.fold(entry)
        return self._history
