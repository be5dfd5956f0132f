"""What the run's evaluations mean for its trainer: which versions and checkpoints they may still need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.trainer.bus import NatsThread
from services.trainer.claim import Claim
from sluice.evaluation.history import EvaluationHistory
from sluice.evaluation_views import RunEvaluationView
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
        best = self.best()
        return self._history.needed(versions) | {v for v in versions if best is not None and str(v) == best.version}

    def best(self) -> RunEvaluationView | None:
        """The best evaluation by checkpoint.keep_best so far; None while there is none, or when it is unset."""
        self._refresh()
        return None if self._metric is None else self._history.best(self._metric)

    def wanted(self, checkpoints: Sequence[Checkpoint]) -> set[str]:
        """Names, `k.lineage`, of those that are the best, or may yet be: their evaluation has not ended."""
        if self._metric is None:
            return set()
        best = best_record(checkpoints, self.best())
        return {Path(c.path).name for c in checkpoints if c == best or self._history.awaited(c.k)}

    def _refresh(self) -> None:
        if self._configured:
            for entry in self._nats.call(self._records.read(), "evaluations"):
                self._history.fold(entry)


def best_record(checkpoints: Sequence[Checkpoint], best: RunEvaluationView | None) -> Checkpoint | None:
    """The newest checkpoint of the best step: a replay trains the same batches under another lineage."""
    return next((c for c in reversed(checkpoints) if best is not None and c.k == best.number), None)


def _first_step(claim: Claim) -> int:
    created = decode_ledger(claim.created[1])
    assert isinstance(created, RunCreated)
    return created.first_step
