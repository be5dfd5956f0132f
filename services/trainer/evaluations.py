"""What the run's evaluations mean for its trainer: which versions and checkpoints they may still need."""

from __future__ import annotations

from collections.abc import Iterable

from services.trainer.bus import NatsThread
from services.trainer.claim import Claim
from sluice.evaluation.history import EvaluationHistory
from sluice.transport.evaluations import evaluations_log
from sluice.transport.nats import Bus
from sluice.types import PolicyVersion, RunCreated
from sluice.wire.records import decode_ledger


class Evaluations:
    """The records of the run's evaluations, read anew whenever something depends on them; no service is asked."""

    def __init__(self, nats: NatsThread, bus: Bus, claim: Claim) -> None:
        self._nats = nats
        self._configured = bool(claim.spec.evaluation.sets)
        self._history = EvaluationHistory(claim.spec.evaluation, _first_step(claim))
        self._records = evaluations_log(bus, claim.run_id)

    def needed(self, versions: Iterable[PolicyVersion]) -> set[PolicyVersion]:
        """Those of these versions that an evaluation is made of, or may yet be: they are not collected."""
        self._refresh()
        return self._history.needed(versions)

    def _refresh(self) -> None:
        if self._configured:
            for entry in self._nats.call(self._records.read(), "evaluations"):
                self._history.fold(entry)


def _first_step(claim: Claim) -> int:
    created = decode_ledger(claim.created[1])
    assert isinstance(created, RunCreated)
    return created.first_step
