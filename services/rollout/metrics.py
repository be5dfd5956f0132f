"""All metrics of the rollout worker. Where `run` is empty, the worker was between two runs."""

from __future__ import annotations

import collections
from contextlib import AbstractContextManager
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from services.rollout.activity import Activity
from sluice.run_series import RunSeries
from sluice.transport.nats import RETRIES
from sluice.waits import Waits

STATUSES = ("scored", "verifier_failed", "failed", "lost", "handed_back", "cancelled")
EVALUATION_STATUSES = ("stored", "failed", "lost", "handed_back")
ENGINE_FAILURE_KINDS = ("died", "refused", "unfinished", "foreign_weights", "timeout")

_series = RunSeries()

TOKENS = _series.counter("sluice_rollout_tokens_total", "Response tokens of finished rollouts, kept or not.")
TOKEN_PROBABILITY = _series.counter(
    "sluice_rollout_token_probability_total",
    "Sum over those tokens of the probability each was sampled with; divided by their number, the mean.",
)
GROUPS = _series.counter(
    "sluice_rollout_groups_total",
    "Prompts settled or given back: scored, verifier_failed, failed, lost (another attempt came first), handed_back, "
    "cancelled.",
    "status",
)
REDELIVERIES = _series.counter(
    "sluice_rollout_redeliveries_total", "Prompts pulled that some worker had been given before."
)
PROMPTS_UNREADABLE = _series.counter("sluice_rollout_prompts_unreadable_total", "Prompts that could not be decoded.")
IN_FLIGHT = _series.gauge("sluice_rollout_in_flight_groups", "Groups that this worker holds.")
SLOTS = _series.gauge("sluice_rollout_slots", "Most groups that this worker takes on at once.")
GENERATE_SECONDS = _series.histogram("sluice_rollout_generate_seconds", "Time the engine took for a group.")
REWARD_SECONDS = _series.histogram("sluice_rollout_reward_seconds", "Time until a group had its verdicts.")
REWARD_RETRIES = _series.counter(
    "sluice_rollout_reward_retries_total", "Score calls that were repeated, at another replica if there was one."
)
WEIGHT_SYNC_SECONDS = _series.histogram(
    "sluice_rollout_weight_sync_seconds", "Time from noticing a policy version to serving it."
)
WEIGHT_FETCH_SECONDS = _series.histogram(
    "sluice_rollout_weight_fetch_seconds", "Of a weight sync: until the files were here and verified."
)
UPDATE_STALL_SECONDS = _series.histogram(
    "sluice_rollout_update_stall_seconds", "Of a weight sync: from pausing the engine to letting it go on."
)
WEIGHT_SYNC_BYTES = _series.counter(
    "sluice_rollout_weight_sync_bytes_total", "Bytes of the policy versions that the engine was given."
)
WEIGHT_SYNC_FAILURES = _series.counter(
    "sluice_rollout_weight_sync_failures_total", "Tries to serve a policy version that failed, by kind.", "kind"
)
POLICY_VERSION = _series.gauge(
    "sluice_rollout_policy_version", "Number of the policy version the engine serves; -1: none."
)
ENGINE_FAILURES = _series.counter(
    "sluice_rollout_engine_failures_total",
    "Attempts that the engine ended: died, refused, unfinished, foreign_weights, timeout.",
    "kind",
)
WAIT_SECONDS = _series.counter(
    "sluice_rollout_wait_seconds_total", "Time spent in each named wait; groups that wait together add up.", "wait"
)
WAITING = _series.gauge("sluice_rollout_waiting", "How many are in each named wait now.", "wait")
TIME_SECONDS = _series.counter(
    "sluice_rollout_time_seconds_total",
    "Where the worker's time goes, one thing at a time: generate, weight_sync, evaluate, reward, store, idle.",
    "doing",
)
EVALUATING = _series.gauge(
    "sluice_rollout_evaluating", "1 while this worker is reserved for an evaluation and makes no training rollouts."
)
EVALUATION_GROUPS = _series.counter(
    "sluice_rollout_evaluation_groups_total",
    "Evaluation prompts settled or given back: stored, failed, lost (another attempt came first), handed_back.",
    "status",
)
EVALUATION_TOKENS = _series.counter(
    "sluice_rollout_evaluation_tokens_total", "Response tokens of evaluations; in no other count of tokens."
)
ENGINE_STARTS = Counter("sluice_rollout_engine_starts_total", "Times this worker started the engine beside it.")
NATS_RETRIES = RETRIES
DISK_FREE = Gauge("sluice_rollout_disk_free_bytes", "Free space where SLUICE_CACHE_DIR is.")
DISK_SIZE = Gauge("sluice_rollout_disk_size_bytes", "Size of that file system.")

_activities: dict[str, Activity] = {}
_waits: collections.defaultdict[str, Waits] = collections.defaultdict(Waits)
"""By run; empty names the time between two runs."""
_named: collections.defaultdict[str, dict[str, _Wait]] = collections.defaultdict(dict)
"""By run and name."""
_joined: collections.Counter[str] = collections.Counter()
"""Workers of this process by run: a process may hold several."""


def join(run: str, slots: int) -> None:
    """A worker serves this run from now on; what can be counted of it exists from the start."""
    _joined[run] += 1
    if _joined[run] > 1:
        return
    _series.begin(run)
    _named.pop(run, None)
    _activities[run] = Activity(lambda doing, seconds: TIME_SECONDS.labels(run, doing).inc(seconds))
    SLOTS.labels(run).set(slots)
    IN_FLIGHT.labels(run).set(0)
    POLICY_VERSION.labels(run).set(-1)
    for counter in (
        TOKENS,
        TOKEN_PROBABILITY,
        REDELIVERIES,
        PROMPTS_UNREADABLE,
        REWARD_RETRIES,
        WEIGHT_SYNC_BYTES,
        EVALUATION_TOKENS,
    ):
        counter.labels(run)
    EVALUATING.labels(run).set(0)
    for status in EVALUATION_STATUSES:
        EVALUATION_GROUPS.labels(run, status)
    for status in STATUSES:
        GROUPS.labels(run, status)
    for kind in ENGINE_FAILURE_KINDS:
        ENGINE_FAILURES.labels(run, kind)
    WEIGHT_SYNC_FAILURES.labels(run, "down")


def leave(run: str) -> None:
    """A worker serves this run no longer."""
    _joined[run] -= 1
    if _joined[run]:
        return
    _activities.pop(run).settle()
    _waits.pop(run, None)
    _named.pop(run, None)
    _series.end(run)


def begin_group(run: str) -> None:
    """One more group is in flight."""
    IN_FLIGHT.labels(run).inc()
    _activities[run].begin("group")


def end_group(run: str) -> None:
    """One group less is in flight."""
    IN_FLIGHT.labels(run).dec()
    _activities[run].end("group")


def waiting(run: str, wait: str) -> AbstractContextManager[None]:
    """Account for a named wait of a run; `run` is empty while the worker has none."""
    known = _named[run]
    if wait not in known:
        series = WAITING.labels(run, wait), WAIT_SECONDS.labels(run, wait)
        known[wait] = _Wait(wait, *series, _waits[run], _activities.get(run))
    return _Waiting(known[wait])


@dataclass(frozen=True, slots=True)
class _Wait:
    """All that tells of one named wait of a run."""

    name: str
    going_on: Gauge
    seconds: Counter
    waits: Waits
    activity: Activity | None


class _Waiting:
    """As every group waits some times, this is a class: a generator would cost twice as much."""

    __slots__ = ("_number", "_wait")

    def __init__(self, wait: _Wait) -> None:
        self._wait = wait

    def __enter__(self) -> None:
        wait = self._wait
        wait.going_on.inc()
        if wait.activity:
            wait.activity.begin(wait.name)
        self._number = wait.waits.begin(wait.name)

    def __exit__(self, *_: object) -> None:
        wait = self._wait
        wait.seconds.inc(wait.waits.end(self._number))
        wait.going_on.dec()
        if wait.activity:
            wait.activity.end(wait.name)


def waits(run: str) -> dict[str, float]:
    """Seconds that the longest wait of each name has lasted, for those that go on now."""
    return _waits[run].longest()


def tokens(run: str) -> int:
    """Response tokens of this run so far."""
    samples = (sample for metric in TOKENS.collect() for sample in metric.samples)
    return int(sum(s.value for s in samples if s.name.endswith("_total") and s.labels["run"] == run))


def time_spent(run: str) -> dict[str, float]:
    """Seconds since this worker joined the run, by what it did."""
    return _activities[run].settle()
