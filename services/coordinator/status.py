"""How a run stands at this moment, and who waits for whom: the same words in the log, the run's status and a metric."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from services.coordinator.bottleneck import describe
from services.coordinator.evaluation.status import Evaluating, generation_pauses
from services.coordinator.filter_queue import FilterQueue
from services.coordinator.history import RunHistory
from services.coordinator.meter import Meter
from services.coordinator.parts import waits_of_parts
from services.coordinator.staff import Beat
from sluice.types import RunState
from sluice.views import BottleneckView, CountsView, View, WaitView


class LiveStatus(View):
    """What only the coordinator that holds the run knows; people see it, no service depends on it."""

    counts: CountsView = CountsView()
    waits: tuple[WaitView, ...] = ()
    bottleneck: BottleneckView | None = None
    workers: int = 0
    version_skew: int = 0
    """Versions that the worker with the oldest weights is behind."""
    prompts_queued: int = 0
    prompts_delivered: int = 0
    oldest_group_seconds: float = 0.0
    """Of the groups in flight."""


@dataclass
class Clocks:
    """Since when things are as they are; all of it starts anew with each holder of the run."""

    progress_at: float = field(default_factory=time.monotonic)
    """Last time a group, a record or a state change came."""
    issued_at: dict[int, float] = field(default_factory=dict)
    """Of each group in flight."""
    full_since: float | None = None
    """Since when there are enough kept groups for the next batch."""

    def progress(self) -> float:
        """Something happened; the time of now."""
        self.progress_at = time.monotonic()
        return self.progress_at

    def fill(self, full: bool) -> None:
        """A group was stored; `full`: there are enough kept groups for a batch."""
        if full and self.full_since is None:
            self.full_since = time.monotonic()

    def filled(self, full: bool) -> float:
        """A batch was emitted, `full`: the next one is full already. For how long this one was full before."""
        now = time.monotonic()
        waited = 0.0 if self.full_since is None else now - self.full_since
        self.full_since = now if full else None
        return waited


def status_of(
    history: RunHistory, queue: FilterQueue, clocks: Clocks, meter: Meter, beat: Beat, evaluating: Evaluating
) -> LiveStatus:
    """The run's counts and named waits, the longest wait first; a paused run has none but for an evaluation that goes
    on: its other clocks stand still. While training generation pauses for an evaluation, nobody waits for groups."""
    now, workers = time.monotonic(), len(beat.staff.workers)
    generates = not generation_pauses(beat.staff.workers)
    oldest = _oldest(queue, clocks)
    limit = history.spec.deadlines.no_progress_seconds
    waits = [
        WaitView(name=name, waits_for=who, seconds=now - clocks.progress_at, deadline_seconds=limit)
        for name, who in _waits_by_state(history, queue, workers).items()
        if generates or name != "groups"
    ]
    if history.state in (RunState.RUNNING, RunState.STOPPING):
        known = {wait.name for wait in waits}
        waits += [wait for wait in waits_of_parts(history.spec, beat) if wait.name not in known]
    if evaluation := evaluating.wait(beat.staff.workers):
        waits.append(evaluation)
    running = history.state is RunState.RUNNING
    if running and generates and oldest and now - oldest[1] >= history.spec.asynchrony.straggler_alarm_seconds:
        waits.append(_straggler(history, *oldest, now))
    measured = meter.window() if running else None
    return LiveStatus(
        counts=counts_of(queue),
        waits=tuple(sorted(waits, key=lambda wait: -wait.seconds)),
        bottleneck=describe(*measured) if measured else None,
        workers=workers,
        version_skew=beat.staff.version_skew(history.version_number),
        prompts_queued=beat.prompts_queued,
        prompts_delivered=beat.prompts_delivered,
        oldest_group_seconds=now - oldest[1] if oldest else 0.0,
    )


def counts_of(queue: FilterQueue) -> CountsView:
    """issued = trained + Σ dropped + live."""
    tally = queue.tally
    return CountsView(
        issued=tally.issued,
        trained=tally.trained,
        live=len(queue.live),
        in_flight=queue.in_flight,
        kept_waiting=queue.kept,
        scored=tally.scored_groups,
        kept=tally.kept_groups,
        dropped={str(reason): count for reason, count in tally.dropped.items()},
    )


def counts_of_ledger(history: RunHistory) -> CountsView:
    """Counts as of the ledger alone: what has happened to groups since the last batch is not in it."""
    trained, dropped = history.fates.counts()
    tally = history.last_batch.tally if history.last_batch else None
    return CountsView(
        issued=history.next_n,
        trained=trained,
        live=history.next_n - trained - sum(dropped.values()),
        scored=tally.scored_groups if tally else 0,
        kept=tally.kept_groups if tally else 0,
        dropped={str(reason): count for reason, count in dropped.items()},
    )


def _waits_by_state(history: RunHistory, queue: FilterQueue, workers: int) -> dict[str, str]:
    match history.state:
        case RunState.QUEUED:
            # Both serve one run at a time: behind another run this wait is the queue, and nothing is wrong.
            trainer = f"a trainer that is free and publishes v{history.first_step}"
            missing = {"trainer": trainer} if history.version_number < 0 else {}
            return missing | ({"rollout_worker": "a rollout worker that is free and joins"} if workers == 0 else {})
        case RunState.RUNNING if queue.in_flight:
            return {"groups": f"{queue.in_flight} groups in flight at {workers} rollout workers"}
        case RunState.RUNNING if queue.finished and history.training_steps >= queue.k:
            return {}  # but for the evaluation of the last version
        case RunState.RUNNING:
            return {"training_step": f"the trainer to publish v{history.training_steps + 1}"}
        case RunState.STOPPING:
            return {"checkpoint": f"the trainer to checkpoint batch {queue.k}"}
        case _:
            return {}


def _oldest(queue: FilterQueue, clocks: Clocks) -> tuple[int, float] | None:
    """The oldest group in flight, and since when it is, as far as this holder knows."""
    oldest = next(queue.in_flight_groups(), None)
    since = None if oldest is None else clocks.issued_at.get(oldest)
    return None if oldest is None or since is None else (oldest, since)


def _straggler(history: RunHistory, oldest: int, since: float, now: float) -> WaitView:
    limit = history.spec.asynchrony.straggler_alarm_seconds
    return WaitView(name="straggler", waits_for=f"group {oldest}", seconds=now - since, deadline_seconds=limit)
