"""All metrics of the coordinator."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from services.coordinator.filter_queue import FilterQueue
from services.coordinator.status import LiveStatus
from sluice.types import DropReason, Group, RunState
from sluice.views import BatchView

SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
STALENESS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


class CoordinatorMetrics:
    """Counters and gauges by run; a run's series go when it has ended."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"sluice_{name}", text, ("run", *labels), registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sluice_{name}", text, ("run", *labels), registry=registry)

        self.issued = counter("groups_issued_total", "Groups issued.")
        self.scored = counter("groups_scored_total", "Groups whose every rollout has a verdict.")
        self.kept = counter("groups_kept_total", "Groups kept by the filter.")
        self.dropped = counter("groups_dropped_total", "Groups that never train.", "reason")
        self.dead_letters = counter("groups_unreadable_total", "GROUPS messages that could not be decoded.")
        self.batches = counter("batches_total", "Batches emitted.")
        self.in_flight = gauge("groups_in_flight", "Issued groups without a stored group yet.")
        self.kept_waiting = gauge("groups_kept_waiting", "Kept groups that wait for their batch.")
        self.capacity = gauge("groups_capacity", "Most groups consumed, kept or in flight at this policy version.")
        self.consumed = gauge("groups_consumed", "Groups that batches have consumed.")
        self.reward = gauge("reward_mean", "Mean reward over all groups sampled for the last batch.")
        self.acc = gauge("acc_mean", "Mean accuracy over all groups sampled for the last batch.")
        self.keep_rate = gauge("keep_rate", "Kept groups of scored groups, for the last batch.")
        self.response_length = gauge("response_length_tokens", "Mean response length of all groups of the last batch.")
        self.truncated = gauge("truncated_share", "Share of rollouts cut at max_response_length, last batch.")
        self.workers = gauge("rollout_workers", "Rollout workers registered for the run.")
        self.version = gauge("published_policy_version", "Highest policy version number ever published.")
        self.wait = gauge("wait_seconds", "How long a named wait has lasted.", "wait")
        self.state = gauge("run_state", "1 for the state that the run is in.", "state")
        self.staleness = Histogram(
            "sluice_batch_staleness_steps",
            "Staleness of groups when a batch consumes them, by the version at issue.",
            ("run",),
            buckets=STALENESS,
            registry=registry,
        )
        self.group_seconds = Histogram(
            "sluice_group_seconds",
            "From issue to stored group.",
            ("run",),
            buckets=SECONDS,
            registry=registry,
        )

    def observe_group(self, run_id: str, group: Group, reason: DropReason | None, seconds: float | None) -> None:
        """A group was stored."""
        if reason is None:
            self.kept.labels(run=run_id).inc()
        else:
            self.dropped.labels(run=run_id, reason=str(reason)).inc()
        if group.status == "scored":
            self.scored.labels(run=run_id).inc()
        if seconds is not None:
            self.group_seconds.labels(run=run_id).observe(seconds)

    def observe_batch(self, run_id: str, view: BatchView) -> None:
        """A batch was emitted."""
        self.batches.labels(run=run_id).inc()
        for metric, value in (
            (self.reward, view.reward_mean),
            (self.acc, view.acc_mean),
            (self.keep_rate, view.keep_rate),
            (self.response_length, view.response_length_mean),
            (self.truncated, view.truncated_share),
        ):
            if value is not None:
                metric.labels(run=run_id).set(value)
        for staleness, groups in view.staleness.items():
            for _ in range(groups):
                self.staleness.labels(run=run_id).observe(float(staleness))

    def observe_status(self, run_id: str, queue: FilterQueue, status: LiveStatus) -> None:
        """How the run stands now; waits that ended are forgotten."""
        self.in_flight.labels(run=run_id).set(queue.in_flight)
        self.kept_waiting.labels(run=run_id).set(queue.kept)
        self.capacity.labels(run=run_id).set(queue.capacity)
        self.consumed.labels(run=run_id).set(queue.tally.trained)
        self.version.labels(run=run_id).set(queue.version)
        self.workers.labels(run=run_id).set(status.workers)
        self.wait.remove_by_labels({"run": run_id})
        for wait in status.waits:
            self.wait.labels(run=run_id, wait=wait.name).set(wait.seconds)

    def observe_state(self, run_id: str, state: RunState) -> None:
        """The run's lifecycle moved."""
        for other in RunState:
            self.state.labels(run=run_id, state=str(other)).set(other is state)
