"""Adds up where the time of a run's trainer and workers goes, and takes the shares of a window that moves along.

Everybody tells its own seconds since its own start; only what they grow by is added, so that restarts, newcomers and
workers that leave change nothing but whose time is measured. While a run does not run, nothing is added.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from services.coordinator.bottleneck import Shares
from services.coordinator.staff import Staff
from sluice.types import Tally

WINDOW_MARKS = 5
MARK_SECONDS = 6.0
"""A window begins at a batch, and so spans whole training steps: five, or half a minute when steps are short."""
MIN_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""A window without a further batch says something from here on."""


@dataclass(slots=True)
class _Totals:
    seconds: float = 0.0
    batches: int = 0
    trainer: Mapping[str, float] = field(default_factory=dict)
    """Seconds by what was done, as `rollouts`."""
    rollouts: Mapping[str, float] = field(default_factory=dict)
    in_flight: float = 0.0
    """Group-seconds, as `slots`."""
    slots: float = 0.0
    workers: float = 0.0
    scored: int = 0
    kept: int = 0


class Meter:
    """One run's; all of it starts anew with each holder of the run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._told: dict[str, Mapping[str, float]] = {}
        self._totals = _Totals()
        self._marks: deque[_Totals] = deque(maxlen=WINDOW_MARKS)

    def beat(self, staff: Staff, tally: Tally, running: bool) -> None:
        """Take what everybody tells of itself now."""
        now = self._clock()
        passed, self._at = now - self._at, now
        trainers = {f"trainer {staff.trainer.name}": staff.trainer.seconds} if staff.trainer else {}
        workers = {f"worker {worker.name}": worker.seconds for worker in staff.workers}
        trained, rolled_out = self._since_told(trainers), self._since_told(workers)
        self._told = {**trainers, **workers}
        if not running:
            return
        totals = self._totals
        totals.seconds += passed
        totals.trainer = _sum(totals.trainer, trained)
        totals.rollouts = _sum(totals.rollouts, rolled_out)
        totals.in_flight += passed * sum(worker.in_flight for worker in staff.workers)
        totals.slots += passed * sum(worker.slots for worker in staff.workers)
        totals.workers += passed * len(staff.workers)
        totals.scored, totals.kept = tally.scored_groups, tally.kept_groups

    def mark(self) -> None:
        """A batch was emitted."""
        self._totals.batches += 1
        if not self._marks or self._totals.seconds - self._marks[-1].seconds >= MARK_SECONDS:
            self._marks.append(replace(self._totals))

    def window(self) -> tuple[Shares, float] | None:
        """The shares since the oldest mark and the seconds they cover; None while too little is known."""
        if not self._marks:
            return None
        begin, end = self._marks[0], self._totals
        seconds = end.seconds - begin.seconds
        enough = seconds >= (MIN_SECONDS if end.batches > begin.batches else PATIENCE_SECONDS)
        trainer, rollouts = _growth(begin.trainer, end.trainer), _growth(begin.rollouts, end.rollouts)
        if not enough or not any(trainer.values()) or not any(rollouts.values()):
            return None
        return _shares(begin, end, trainer, rollouts), seconds

    def _since_told(self, told: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
        """Seconds since the beat before, added up over everybody who was there then."""
        total: Mapping[str, float] = {}
        for name, seconds in told.items():
            before = self._told.get(name)
            if before is None or sum(seconds.values()) < sum(before.values()):
                continue  # new here, or restarted: counted from now on
            total = _sum(total, _growth(before, seconds))
        return total


def _growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {doing: max(seconds - before.get(doing, 0.0), 0.0) for doing, seconds in after.items()}


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {doing: one.get(doing, 0.0) + other.get(doing, 0.0) for doing in {*one, *other}}


def _shares(begin: _Totals, end: _Totals, trained: Mapping[str, float], rolled_out: Mapping[str, float]) -> Shares:
    trainer, rollouts = defaultdict(float, trained), defaultdict(float, rolled_out)
    of_trainer, of_rollouts = sum(trained.values()), sum(rolled_out.values())
    slots, workers = end.slots - begin.slots, end.workers - begin.workers
    in_flight, scored = end.in_flight - begin.in_flight, end.scored - begin.scored
    return Shares(
        trainer_waits=trainer["wait"] / of_trainer,
        trainer_trains=(trainer["train"] + trainer["fetch"]) / of_trainer,
        trainer_publishes=trainer["publish"] / of_trainer,
        trainer_checkpoints=trainer["checkpoint"] / of_trainer,
        rollouts_generate=rollouts["generate"] / of_rollouts,
        rollouts_idle=rollouts["idle"] / of_rollouts,
        rollouts_reward=rollouts["reward"] / of_rollouts,
        rollouts_weight_sync=rollouts["weight_sync"] / of_rollouts,
        slots_used=min(in_flight / slots, 1.0) if slots else 0.0,
        keep_rate=(end.kept - begin.kept) / scored if scored > 0 else 1.0,
        groups_per_worker=in_flight / workers if workers else 0.0,
    )
