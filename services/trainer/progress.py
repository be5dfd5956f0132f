"""How far the optimizer is, and the learning rate that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.algorithms.schedules import Schedule
from sluice.config import RunSpec


@dataclass(frozen=True, slots=True)
class Progress:
    """What a batch without a trained token does not move; training steps (batches) are counted beside it."""

    updates: int
    """Optimizer updates."""
    updated_steps: int
    """Training steps that made at least one."""

    def after(self, updates: int) -> Progress:
        """Once a training step has made so many updates."""
        return Progress(self.updates + updates, self.updated_steps + (updates > 0))


class LearningRate:
    """The run's schedule, in its own unit."""

    def __init__(self, spec: RunSpec) -> None:
        optim = spec.optim
        self._by_update = optim.lr_unit == "update"
        self._schedule = Schedule(
            optim.lr, optim.lr_scheduler_type, optim.lr_warmup_steps, spec.schedule_length, optim.min_lr_ratio
        )

    def of(self, progress: Progress, update: int) -> float:
        """Rate of update number `update` (from 0) of the training step that begins at `progress`."""
        return self._schedule.rate(progress.updates + update if self._by_update else progress.updated_steps)
