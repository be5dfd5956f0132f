"""What the rest of a run must know of its evaluations: whether one is still to come, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sluice.config import RunSpec
from sluice.evaluation.history import EvaluationHistory
from sluice.views import WaitView, WorkerView

WAIT = "evaluation"


class Evaluating:
    """The evaluations of one run, as the loop that sees to them has read and stored them.

    Args:
        first: number of the run's first policy version.
    """

    def __init__(self, spec: RunSpec, first: int = 0) -> None:
        self._deadline = spec.evaluation.deadline_seconds
        self.history = EvaluationHistory(spec.evaluation, first)
        self.last: int | None = None
        """Number of the run's last version, once it is known; that one is always evaluated."""
        self.done = 0
        """Prompts of the running evaluation that are answered."""
        self._generation_pauses = False

    @property
    def pending(self) -> bool:
        """The run has made its last batch, and an evaluation of one of its versions is still to come or to end."""
        return self.last is not None and self.history.pending(self.last)

    def news(self, workers: Sequence[WorkerView]) -> dict[str, str] | None:
        """What people should be told when training generation stops for an evaluation, and when it goes on again."""
        if self._generation_pauses == generation_pauses(workers):
            return None
        self._generation_pauses = not self._generation_pauses
        if not self._generation_pauses:
            return {"state": "generation_resumed", "reason": "a rollout worker makes training rollouts again"}
        reason = f"all of {len(workers)} rollout workers are reserved for an evaluation; optimisation goes on"
        return {"state": "generation_paused", "reason": reason}

    def wait(self, workers: Sequence[WorkerView]) -> WaitView | None:
        """The wait for the evaluation that goes on, or None."""
        running = self.history.running
        if running is None:
            return None
        who = (
            f"the evaluation of {running.version}: {self.done} of {running.begun.prompts} prompts answered, "
            f"{sum(evaluates(w) for w in workers)} of {len(workers)} rollout workers reserved"
        )
        if generation_pauses(workers):
            who += "; training generation pauses, optimisation goes on"
        seconds = (datetime.now(UTC) - running.at).total_seconds()
        return WaitView(name=WAIT, waits_for=who, seconds=max(seconds, 0.0), deadline_seconds=self._deadline)


def evaluates(worker: WorkerView) -> bool:
    return worker.evaluating is not None


def generation_pauses(workers: Sequence[WorkerView]) -> bool:
    """Every worker is reserved for an evaluation: nobody makes training rollouts."""
    return bool(workers) and all(map(evaluates, workers))
