"""Who is there for a run: its rollout workers and its trainer, as they said of themselves last."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.coordinator.attendance import Attendance
from sluice.types import PolicyVersion
from sluice.views import WorkerView


@dataclass(frozen=True, slots=True)
class TrainerBeat:
    """The trainer's registration: its name, and its seconds since it claimed the run, by what it did."""

    name: str
    seconds: Mapping[str, float]
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds of its waits that go on now, by name."""


@dataclass(frozen=True, slots=True)
class Staff:
    """Whose registration has not run out."""

    workers: tuple[WorkerView, ...] = ()
    trainer: TrainerBeat | None = None

    def version_skew(self, published: int) -> int:
        """How far the worker with the oldest weights is behind; those that serve none yet, or serve an evaluation, are
        not counted."""
        served = [PolicyVersion.parse(w.version).number for w in self.workers if w.version and w.evaluating is None]
        return max(published - min(served), 0) if served else 0


@dataclass(frozen=True, slots=True)
class Beat:
    """What the coordinator learns of a run's surroundings each second."""

    staff: Staff = field(default_factory=Staff)
    prompts_queued: int = 0
    """Prompts that no worker has pulled."""
    prompts_delivered: int = 0
    """Prompts in workers' hands."""
    heard_at: float = field(default_factory=time.monotonic)
    """When NATS gave the last answer; monotonic time."""
    unheard_seconds: float = 0.0
    """For how long it has given none; 0 if it answers."""
    workers_seen: Attendance = field(default_factory=Attendance)
    trainers_seen: Attendance = field(default_factory=Attendance)
