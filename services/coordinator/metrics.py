"""All metrics of the coordinator: of the runs that it holds, and of the streams that all runs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from services.coordinator.bottleneck import Part
from services.coordinator.curriculum import Difficulty
from services.coordinator.evaluation.metrics import EvaluationMetrics
from services.coordinator.filter_queue import FilterQueue
from services.coordinator.history import RunHistory
from services.coordinator.status import LiveStatus
from sluice.run_series import STALENESS, TOKENS, RunSeries
from sluice.transport.nats import RETRIES
from sluice.types import DropReason, Group, GroupStatus, RunState
from sluice.views import BatchView

NATS_RETRIES = RETRIES


class CoordinatorMetrics:
    """Counters and gauges by run; a run's gauges are there while this coordinator holds it, its last state longer."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._series = RunSeries(registry)
        self._over: set[str] = set()
        """Held runs that have ended: their state changes no more, whoever looks after them."""
        self._count_groups()
        self._count_prompts()
        self._measure_batches()
        self._show_run()
        self._show_waits()
        self._show_streams(registry)
        self.evaluations = EvaluationMetrics(self._series)

    def _count_groups(self) -> None:
        counter, gauge, histogram = self._series.counter, self._series.gauge, self._series.histogram
        self.issued = counter("sluice_groups_issued_total", "Groups issued.")
        self.scored = counter("sluice_groups_scored_total", "Groups whose every rollout has a verdict.")
        self.kept = counter("sluice_groups_kept_total", "Groups kept by the filter.")
        self.dropped = counter("sluice_groups_dropped_total", "Groups that never train.", "reason")
        self.dead_letters = counter("sluice_groups_unreadable_total", "GROUPS messages that could not be decoded.")
        self.in_flight = gauge("sluice_groups_in_flight", "Issued groups without a stored group yet.")
        self.kept_waiting = gauge("sluice_groups_kept_waiting", "Kept groups that wait for their batch.")
        self.capacity = gauge(
            "sluice_groups_capacity", "Most groups consumed, kept or in flight at this policy version."
        )
        self.consumed = gauge("sluice_groups_consumed", "Groups that batches have consumed.")
        self.queued = gauge("sluice_prompts_queued", "Prompts that no worker has pulled.")
        self.delivered = gauge("sluice_prompts_delivered", "Prompts in workers' hands.")
        self.oldest = gauge("sluice_oldest_group_seconds", "Age of the oldest group in flight; 0 without any.")
        self.group_seconds = histogram("sluice_group_seconds", "From issue to stored group.")
        self.group_tokens = histogram(
            "sluice_group_response_tokens",
            "Length of each response of a scored group, by what the filter decided: kept, dropped.",
            "decision",
            buckets=TOKENS,
        )

    def _count_prompts(self) -> None:
        """A data source of its own for the commonest ones, and `other`; five difficulties."""
        counter, gauge = self._series.counter, self._series.gauge
        by = ("data_source", "difficulty")
        self.prompt_groups = counter(
            "sluice_prompt_groups_total",
            "Scored groups by data source, and by how often the policy had been right at the prompt before: unseen, "
            "always_wrong, mostly_wrong, mostly_right, always_right.",
            *by,
        )
        self.prompt_groups_kept = counter("sluice_prompt_groups_kept_total", "Those that the filter kept.", *by)
        self.skipped = counter("sluice_prompts_skipped_total", "Draws of the data order that the curriculum skipped.")
        self.lots = gauge(
            "sluice_prompts_by_lot", "Prompts that return by chance only, by their last groups.", "outcome"
        )

    def _measure_batches(self) -> None:
        counter, gauge, histogram = self._series.counter, self._series.gauge, self._series.histogram
        self.batches = counter("sluice_batches_total", "Batches emitted.")
        self.last_batch = gauge(
            "sluice_last_batch_timestamp_seconds",
            "When the last batch was emitted, or the first prompt issued; Unix time.",
        )
        self.fill_seconds = histogram(
            "sluice_batch_fill_seconds", "From the batch before, or the first prompt, to a batch."
        )
        self.straggler_seconds = histogram(
            "sluice_batch_straggler_seconds", "How long a full batch waited for older groups in flight."
        )
        self.staleness = histogram(
            "sluice_batch_staleness_steps",
            "Staleness of groups when a batch consumes them, by the version at issue.",
            buckets=STALENESS,
        )
        self.bound = gauge("sluice_staleness_bound_steps", "The run's max_staleness.")
        self.reward = gauge("sluice_reward_mean", "Mean reward over all groups sampled for the last batch.")
        self.acc = gauge("sluice_acc_mean", "Mean accuracy over all groups sampled for the last batch.")
        self.keep_rate = gauge("sluice_keep_rate", "Kept groups of scored groups, for the last batch.")
        self.response_length = gauge(
            "sluice_response_length_tokens", "Mean response length of all groups of the last batch."
        )
        self.truncated = gauge("sluice_truncated_share", "Share of rollouts cut at max_response_length, last batch.")

    def _show_run(self) -> None:
        counter, gauge = self._series.counter, self._series.gauge
        self.state = self._series.final_gauge("sluice_run_state", "1 for the state that the run is in.", "state")
        self.lease = gauge("sluice_lease_held", "1 at the coordinator that holds the run.")
        self.claims = counter("sluice_claims_total", "Times that this coordinator claimed the run in its ledger.")
        self.training_failures = counter(
            "sluice_training_failures_total", "Times that the trainer put on record that it cannot go on."
        )
        self.workers = gauge("sluice_rollout_workers", "Rollout workers registered for the run.")
        self.version = gauge("sluice_published_policy_version", "Highest policy version number ever published.")
        self.skew = gauge(
            "sluice_version_skew_steps", "Versions that the worker with the oldest weights is behind the trainer."
        )

    def _show_waits(self) -> None:
        gauge = self._series.gauge
        self.wait = gauge("sluice_wait_seconds", "How long a named wait has lasted.", "wait")
        self.wait_deadline = gauge("sluice_wait_deadline_seconds", "When that wait becomes an alarm.", "wait")
        self.bottleneck = gauge(
            "sluice_bottleneck",
            "1 for the part that holds the run back: rollouts, trainer, reward, weight_sync, filter, staleness, "
            "checkpoint, balanced.",
            "part",
        )
        self.bottleneck_share = gauge(
            "sluice_bottleneck_share",
            "What that verdict is made from: shares of the trainer's time, of the rollouts' time, the share of slots "
            "in use, the keep rate.",
            "share",
        )

    def _show_streams(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"sluice_{name}", text, labels, registry=registry)

        self.stream_bytes = gauge("stream_bytes", "Bytes that a stream holds.", "stream")
        self.stream_messages = gauge("stream_messages", "Messages that a stream holds.", "stream")
        self.stream_limit = gauge(
            "stream_limit_bytes", "Most bytes that it may hold; absent without a limit.", "stream"
        )
        self.nats_silent = gauge("nats_silent_seconds", "For how long NATS has not answered; 0 while it does.")
        self.redis_away = gauge("redis_away_seconds", "For how long Redis has been away; 0 while it is there.")
        self.storage = gauge("jetstream_storage_bytes", "File storage that NATS uses for all streams.")
        self.unreadable = gauge("runs_unreadable", "Runs that this coordinator does not hold as it cannot read them.")
        self.ended = Counter(
            "sluice_runs_ended_total", "Runs that this coordinator saw end, by state.", ("state",), registry=registry
        )
        for state in RunState:
            if state.terminal:
                self.ended.labels(state=str(state))

    def watch(self, nats_silent: Callable[[], float], redis_away: Callable[[], float]) -> None:
        """Have what this coordinator misses be looked at whenever the metrics are read."""
        self.nats_silent.set_function(nats_silent)
        self.redis_away.set_function(redis_away)

    # ---------------------------------------------------------------- what happens

    def begin(self, history: RunHistory) -> None:
        """This coordinator holds the run from now on; what can be counted of it exists from the start."""
        run_id = history.run_id
        self._series.begin(run_id)
        self.lease.labels(run=run_id).set(1)
        self.claims.labels(run=run_id).inc()
        self.bound.labels(run=run_id).set(history.spec.asynchrony.max_staleness)
        for counter in (self.issued, self.scored, self.kept, self.dead_letters, self.batches, self.training_failures):
            counter.labels(run=run_id)
        self.skipped.labels(run=run_id)
        for reason in DropReason:
            self.dropped.labels(run=run_id, reason=str(reason))
        if history.spec.evaluation.sets:
            self.evaluations.begin(run_id)
        self.observe_state(run_id, history.state)

    def end(self, run_id: str) -> None:
        """This coordinator does not hold the run any more. How it ended stays to be seen; a state that another
        coordinator may change does not.
        """
        if run_id not in self._over:
            self.state.remove_by_labels({"run": run_id})
            self.evaluations.forget(run_id)
        self._over.discard(run_id)
        self._series.end(run_id)

    def observe_group(self, run_id: str, group: Group, reason: DropReason | None, seconds: float | None) -> None:
        """A group was stored."""
        if reason is None:
            self.kept.labels(run=run_id).inc()
        else:
            self.dropped.labels(run=run_id, reason=str(reason)).inc()
        if group.status is GroupStatus.SCORED:
            self.scored.labels(run=run_id).inc()
            lengths = self.group_tokens.labels(run=run_id, decision="kept" if reason is None else "dropped")
            for rollout in group.rollouts:
                lengths.observe(rollout.length)
        if seconds is not None:
            self.group_seconds.labels(run=run_id).observe(seconds)

    def observe_prompt(self, run_id: str, data_source: str, difficulty: Difficulty, kept: bool) -> None:
        """A scored group came from a prompt of this data source, which was so difficult before."""
        labels = {"run": run_id, "data_source": data_source, "difficulty": str(difficulty)}
        self.prompt_groups.labels(**labels).inc()
        self.prompt_groups_kept.labels(**labels).inc(kept)

    def observe_lots(self, run_id: str, lots: Mapping[DropReason, int]) -> None:
        """So many prompts return by chance only."""
        for outcome in (DropReason.ALL_CORRECT, DropReason.ALL_WRONG):
            self.lots.labels(run=run_id, outcome=str(outcome)).set(lots.get(outcome, 0))

    def observe_batch(self, run_id: str, view: BatchView, full_seconds: float) -> None:
        """A batch was emitted that had been full for `full_seconds`."""
        self.batches.labels(run=run_id).inc()
        self.straggler_seconds.labels(run=run_id).observe(full_seconds)
        if view.fill_seconds is not None:
            self.fill_seconds.labels(run=run_id).observe(view.fill_seconds)
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

    def observe_status(self, history: RunHistory, queue: FilterQueue, status: LiveStatus) -> None:
        """How the run stands now; waits that ended are forgotten."""
        since = history.last_batch_at or history.first_issue_at
        values: Mapping[Gauge, float] = {
            self.in_flight: queue.in_flight,
            self.kept_waiting: queue.kept,
            self.capacity: queue.capacity,
            self.consumed: queue.tally.trained,
            self.version: queue.version,
            self.workers: status.workers,
            self.skew: status.version_skew,
            self.queued: status.prompts_queued,
            self.delivered: status.prompts_delivered,
            self.oldest: status.oldest_group_seconds,
            **({self.last_batch: since.timestamp()} if since else {}),
        }
        for metric, value in values.items():
            metric.labels(run=history.run_id).set(value)
        self._observe_waits(history.run_id, status)

    def _observe_waits(self, run_id: str, status: LiveStatus) -> None:
        for metric in (self.wait, self.wait_deadline, self.bottleneck, self.bottleneck_share):
            metric.remove_by_labels({"run": run_id})
        for wait in status.waits:
            self.wait.labels(run=run_id, wait=wait.name).set(wait.seconds)
            if wait.deadline_seconds is not None:
                self.wait_deadline.labels(run=run_id, wait=wait.name).set(wait.deadline_seconds)
        if status.bottleneck is None:
            return
        for part in Part:
            self.bottleneck.labels(run=run_id, part=str(part)).set(part == status.bottleneck.part)
        for share, value in status.bottleneck.shares.items():
            self.bottleneck_share.labels(run=run_id, share=share).set(value)

    def observe_state(self, run_id: str, state: RunState) -> None:
        """The run's lifecycle moved."""
        for other in RunState:
            self.state.labels(run=run_id, state=str(other)).set(other is state)
        if state.terminal:
            self._over.add(run_id)
            self.ended.labels(state=str(state)).inc()
