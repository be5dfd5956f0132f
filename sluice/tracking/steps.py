"""Training steps out of a run's events, each once and in order: a pure fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sluice.tracking.names import values_of
from sluice.views import EventView, RunView, StepView


@dataclass(frozen=True, slots=True)
class TrackedStep:
    """One training step as trackers get it."""

    number: int
    """Training steps done, this one included: 1 for the first, as `sluice watch` counts and policy versions do."""
    time: datetime
    """When it was finished; when its batch was emitted, where the event of its training is lost."""
    version: str | None
    """The policy version that it made, if known."""
    values: dict[str, float]


class StepFold:
    """Feed it with `see_batches` and `see_event`; both may repeat themselves.

    A step goes out when its training is known, and with it all steps below: their events were lost, so they have what
    the ledger says of their batches. A step that is trained again after a restart went out already.
    """

    def __init__(self, run: RunView) -> None:
        self._began = run.first_issue_at or run.created_at
        self._batches: dict[int, tuple[datetime, Mapping[str, Any]]] = {}
        self.done = 0
        """Steps that went out, or never will."""

    def see_batches(self, steps: Iterable[StepView]) -> None:
        """Take what the ledger knows, which is kept longer than events are."""
        for step in steps:
            if step.step >= self.done:
                at = self._began + timedelta(seconds=step.batch.elapsed_seconds or 0.0)
                self._batches.setdefault(step.step, (at, step.batch.model_dump(mode="json")))

    def lacks_batch(self, event: EventView) -> bool:
        """`event` completes a step whose batch, or that of one below, was not seen: its event is lost."""
        if event.kind != "step":
            return False
        return any(k not in self._batches for k in range(self.done, int(event.fields.get("step", -1)) + 1))

    def see_event(self, event: EventView) -> list[TrackedStep]:
        """Take one event; returns the steps that are complete with it."""
        k = int(event.fields.get("step", -1))
        if k < self.done:
            return []
        if event.kind == "batch":
            self._batches[k] = event.time, event.fields
        if event.kind != "step":
            return []
        _, batch = self._batches.pop(k, (event.time, {}))
        passed = self.without_training(k)
        self.done = k + 1
        return [*passed, TrackedStep(k + 1, event.time, event.fields.get("version"), values_of(batch, event.fields))]

    def without_training(self, steps: int) -> list[TrackedStep]:
        """The steps below `steps` that have not gone out: the events of their training will not come any more."""
        passed = [(k, *self._batches.pop(k)) for k in range(self.done, steps) if k in self._batches]
        self.done = max(self.done, steps)
        return [TrackedStep(k + 1, at, None, values_of(batch, {})) for k, at, batch in passed]
