"""How a run stands at this moment, and who waits for whom: the same words in the log, the run's status and a metric."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from services.coordinator.filter_queue import FilterQueue
from services.coordinator.history import RunHistory
from sluice.types import RunState
from sluice.views import CountsView, View, WaitView


class LiveStatus(View):
    """What only the coordinator that holds the run knows; people see it, no service depends on it."""

    counts: CountsView = CountsView()
    waits: tuple[WaitView, ...] = ()
    workers: int = 0


@dataclass
class Clocks:
    """Since when things are as they are; all of it starts anew with each holder of the run."""

    progress_at: float = field(default_factory=time.monotonic)
    """Last time a group, a record or a state change came."""
    issued_at: dict[int, float] = field(default_factory=dict)
    """Of each group in flight."""

    def progress(self) -> float:
        """Something happened; the time of now."""
        self.progress_at = time.monotonic()
        return self.progress_at


def status_of(history: RunHistory, queue: FilterQueue, clocks: Clocks, workers: int) -> LiveStatus:
    """The run's counts and named waits, the longest wait first; a paused run has none: its clocks stand still."""
    now = time.monotonic()
    limit = history.spec.deadlines.no_progress_seconds
    waits = [
        WaitView(name=name, waits_for=who, seconds=now - clocks.progress_at, deadline_seconds=limit)
        for name, who in _waits_by_state(history, queue, workers).items()
    ]
    if history.state is RunState.RUNNING and (straggler := _straggler(history, queue, clocks, now)):
        waits.append(straggler)
    return LiveStatus(
        counts=counts_of(queue), waits=tuple(sorted(waits, key=lambda wait: -wait.seconds)), workers=workers
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


def _waits_by_state(history: RunHistory, queue: FilterQueue, workers: int) -> dict[str, str]:
    match history.state:
        case RunState.QUEUED:
            missing = {"trainer": "a trainer that publishes v0"} if history.version_number < 0 else {}
            return missing | ({"rollout_worker": "a rollout worker that joins"} if workers == 0 else {})
        case RunState.RUNNING if queue.in_flight:
            return {"groups": f"{queue.in_flight} groups in flight at {workers} rollout workers"}
        case RunState.RUNNING:
            return {"training_step": f"the trainer to publish v{history.training_steps + 1}"}
        case RunState.STOPPING:
            return {"checkpoint": f"the trainer to checkpoint batch {queue.k}"}
        case _:
            return {}


def _straggler(history: RunHistory, queue: FilterQueue, clocks: Clocks, now: float) -> WaitView | None:
    limit = history.spec.asynchrony.straggler_alarm_seconds
    oldest = next(queue.in_flight_groups(), None)
    since = None if oldest is None else clocks.issued_at.get(oldest)
    if since is None or now - since < limit:
        return None
    return WaitView(name="straggler", waits_for=f"group {oldest}", seconds=now - since, deadline_seconds=limit)
