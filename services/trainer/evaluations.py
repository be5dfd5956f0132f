"""What the run's evaluations mean for its trainer: which versions and checkpoints they may still need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.trainer.bus import NatsThread
from services.trainer.claim import Claim
from sluice.evaluation.history import EvaluationHistory
from sluice.evaluation_views import RunEvaluationView, best_of
from sluice.transport.evaluations import evaluations_log
from sluice.transport.nats import Bus
from sluice.types import Checkpoint, PolicyVersion, RunCreated
from sluice.wire.records import decode_ledger


class Evaluations:
    """The records of the run's evaluations, read anew whenever something depends on them; no service is asked."""

    def __init__(self, nats: NatsThread, bus: Bus, claim: Claim) -> None:
        self._nats = nats
        self._configured = bool(claim.spec.evaluation.sets)
        self._history = EvaluationHistory(claim.spec.evaluation, _first_step(claim))
        self._metric = claim.spec.checkpoint.keep_best
        self._records = evaluations_log(bus, claim.run_id)

    def needed(self, versions: Sequence[PolicyVersion]) -> set[PolicyVersion]:
        """Those of these versions that an evaluation is made of, or may yet be, and the best one."""
        self._refresh()
        best = None if self._metric is None else best_of(self._history.views.values(), self._metric)
        return self._history.needed(versions) | {v for v in versions if best is not None and str(v) == best.version}

    def best(self, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, RunEvaluationView] | None:
        """Of these checkpoints, oldest first, the one with the best evaluation by checkpoint.keep_best, and that.

        Of a step that was replayed it is the newest: the same batches were trained again.
        """
        if self._metric is None:
            return None
        self._refresh()
        newest = {record.k: record for record in checkpoints}
        evaluated = (view for number, view in self._history.views.items() if number in newest)
        best = best_of(evaluated, self._metric)
        return None if best is None else (newest[best.number], best)

    def wanted(self, checkpoints: Sequence[Checkpoint]) -> set[str]:
        """Names, `k.lineage`, of the best of these and of those that may yet be: their evaluation has not ended."""
        if self._metric is None:
            return set()
        best = self.best(checkpoints)
        stay = [c for c in checkpoints if self._history.awaited(c.k)] + ([best[0]] if best else [])
        return {Path(record.path).name for record in stay}

    def _refresh(self) -> None:
        if self._configured:
            for entry in self._nats.call(self._records.read(), "evaluations"):
                self._history.fold(entry)


def _first_step(claim: Claim) -> int:
    created = decode_ledger(claim.created[1])
    assert isinstance(created, RunCreated)
    return created.first_step
