"""All metrics of the rollout worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

TOKENS = Counter("sluice_rollout_tokens_total", "Response tokens of finished rollouts, kept or not.")
GROUPS = Counter(
    "sluice_rollout_groups_total",
    "Prompts settled or given back: scored, verifier_failed, failed, lost (another attempt came first), handed_back, "
    "cancelled.",
    ["status"],
)
PROMPTS_UNREADABLE = Counter("sluice_rollout_prompts_unreadable_total", "Prompts that could not be decoded.")
IN_FLIGHT = Gauge("sluice_rollout_in_flight_groups", "Groups that this worker holds.")
GENERATE_SECONDS = Histogram("sluice_rollout_generate_seconds", "Time the engine took for a group.", buckets=_SECONDS)
REWARD_SECONDS = Histogram("sluice_rollout_reward_seconds", "Time until a group had its verdicts.", buckets=_SECONDS)
WEIGHT_SYNC_SECONDS = Histogram(
    "sluice_rollout_weight_sync_seconds", "Time from noticing a policy version to serving it.", buckets=_SECONDS
)
WEIGHT_SYNC_FAILURES = Counter(
    "sluice_rollout_weight_sync_failures_total", "Tries to serve a policy version that failed, by kind.", ["kind"]
)
POLICY_VERSION = Gauge("sluice_rollout_policy_version", "Number of the policy version the engine serves; -1: none.")
ENGINE_FAILURES = Counter(
    "sluice_rollout_engine_failures_total",
    "Attempts that the engine ended: died, refused, unfinished, foreign_weights, timeout.",
    ["kind"],
)
ENGINE_STARTS = Counter("sluice_rollout_engine_starts_total", "Times this worker started the engine beside it.")
WAIT_SECONDS = Counter("sluice_rollout_wait_seconds_total", "Time spent in each named wait.", ["wait"])
WAITING = Gauge("sluice_rollout_waiting", "How many are in each named wait now.", ["wait"])


@contextmanager
def waiting(wait: str) -> Iterator[None]:
    """Account for a named wait."""
    started = time.monotonic()
    WAITING.labels(wait).inc()
    try:
        yield
    finally:
        WAITING.labels(wait).dec()
        WAIT_SECONDS.labels(wait).inc(time.monotonic() - started)


def tokens() -> int:
    """Response tokens so far."""
    return int(sum(sample.value for metric in TOKENS.collect() for sample in metric.samples if "total" in sample.name))
