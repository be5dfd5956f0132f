"""The evaluations of a run, as its EVALUATIONS records tell them: a pure fold, the same for all who read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sluice.config import EvaluationConfig
from sluice.evaluation_views import EvaluationView, RunEvaluationView
from sluice.transport.log import Entry
from sluice.types import EvaluationBegun, EvaluationEnded, EvaluationRecord, PolicyVersion


@dataclass(frozen=True, slots=True)
class Running:
    """The evaluation that goes on, and the server's time at which it began."""

    begun: EvaluationBegun
    at: datetime

    @property
    def version(self) -> PolicyVersion:
        return self.begun.version


class EvaluationHistory:
    """Each number of a policy version is evaluated at most once: a replay trains the same batches again.

    Args:
        first: number of the run's first version, "before training".
    """

    def __init__(self, config: EvaluationConfig, first: int = 0) -> None:
        self._config, self._first = config, first
        self.running: Running | None = None
        self.views: dict[int, RunEvaluationView] = {}
        """By number, in the order in which they began or were passed over."""

    def fold(self, entry: Entry[EvaluationRecord]) -> None:
        """Take the next record."""
        match entry.record:
            case EvaluationBegun() as begun:
                self.running = Running(begun, entry.time)
                self.views[begun.version.number] = RunEvaluationView(
                    number=begun.version.number,
                    version=str(begun.version),
                    begun_at=entry.time,
                    prompts=begun.prompts,
                    responses=begun.responses,
                )
            case EvaluationEnded() as ended:
                self._end(ended, entry.time)

    def settled(self, number: int) -> bool:
        """Whether it is known for good what became of the evaluation of version `number`."""
        return number in self.views and self.views[number].state != "running"

    def needed(self, versions: Iterable[PolicyVersion]) -> set[PolicyVersion]:
        """Those of these versions whose weights an evaluation needs now, or may still need."""
        now = None if self.running is None else self.running.version
        return {v for v in versions if v == now or self.awaited(v.number)}

    def due(self, versions: Iterable[PolicyVersion], last: int | None) -> list[PolicyVersion]:
        """The published versions that are to be evaluated and are not yet, lowest first; of a number the newest.

        Args:
            last: number of the run's last version, which is always evaluated; None while it is not known.
        """
        wanted = {v.number: v for v in sorted(versions) if self._wanted(v.number, last) and v.number not in self.views}
        return [wanted[number] for number in sorted(wanted)]

    def pending(self, last: int) -> bool:
        """Whether an evaluation of a version up to `last`, the run's last one, is still to come or to end."""
        return any(self._wanted(number, last) and not self.settled(number) for number in range(self._first, last + 1))

    def awaited(self, number: int) -> bool:
        """Whether version `number` is due, and not yet evaluated or passed over."""
        return self._wanted(number, None) and not self.settled(number)

    def _wanted(self, number: int, last: int | None) -> bool:
        return bool(self._config.sets) and (number == last or self._config.due(number, self._first))

    def _end(self, ended: EvaluationEnded, time: datetime) -> None:
        number = ended.version.number
        begun = self.views.get(number) or RunEvaluationView(number=number, version=str(ended.version))
        results = {
            name: EvaluationView.model_validate(view) for name, view in json.loads(ended.results_json or "{}").items()
        }
        self.views[number] = begun.model_copy(
            update={"state": str(ended.outcome), "reason": ended.reason, "ended_at": time, "sets": results}
        )
        if self.running is not None and self.running.version == ended.version:
            self.running = None
