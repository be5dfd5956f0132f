"""All metrics of the trainer; rank 0 serves them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram

from services.trainer.report import StepReport

SECONDS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
STALENESS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

PHASE_SECONDS = Histogram(
    "sluice_trainer_phase_seconds", "Seconds of a training step by phase.", ("phase",), buckets=SECONDS
)
VERSION = Gauge("sluice_trainer_policy_version", "Number of the newest published policy version.")
LINEAGE = Gauge("sluice_trainer_lineage", "Lineage of this trainer.")
STEPS = Counter("sluice_trainer_steps_total", "Training steps done by this process, replayed ones included.")
UPDATES = Counter("sluice_trainer_updates_total", "Optimizer updates done by this process.")
STALENESS_VERSIONS = Histogram(
    "sluice_trainer_staleness_versions", "Staleness of each rollout when it is consumed.", buckets=STALENESS
)
TOKENS = Counter("sluice_trainer_tokens_total", "Tokens consumed.", ("kind",))
GAUGES = {
    name: Gauge(f"sluice_trainer_{name}", f"Of the last training step: {text}.")
    for name, text in {
        "loss": "loss",
        "grad_norm": "gradient norm before clipping, mean over its updates",
        "lr": "learning rate",
        "entropy": "mean token entropy in nats",
        "clip_fraction_high": "share of tokens clipped above",
        "clip_fraction_low": "share of tokens clipped below",
        "approx_kl": "mean log-ratio proximal to current, in nats",
        "logprob_gap_mean": "mean |trainer − behaviour| log-prob, in nats",
        "importance_weight_mean": "mean truncated importance weight",
        "reward_mean_kept": "mean reward of the kept groups",
    }.items()
}
WAITING = Gauge("sluice_trainer_waiting", "1 while the trainer waits for this.", ("wait",))
WAIT_SECONDS = Counter("sluice_trainer_wait_seconds_total", "Seconds spent waiting, by name.", ("wait",))
CHECKPOINT = Gauge("sluice_trainer_checkpoint_number", "Batches that the newest checkpoint covers.")


@contextmanager
def waiting(name: str) -> Iterator[None]:
    """Show a wait by its name while it lasts."""
    begin = time.monotonic()
    WAITING.labels(name).set(1)
    try:
        yield
    finally:
        WAITING.labels(name).set(0)
        WAIT_SECONDS.labels(name).inc(time.monotonic() - begin)


def observe(report: StepReport) -> None:
    """Take one finished training step."""
    STEPS.inc()
    UPDATES.inc(report.updates)
    TOKENS.labels("prompt").inc(report.prompt_tokens)
    TOKENS.labels("response").inc(report.response_tokens)
    for staleness in report.staleness:
        STALENESS_VERSIONS.observe(staleness)
    for phase, seconds in report.seconds.items():
        PHASE_SECONDS.labels(phase).observe(seconds)
    fields = report.fields()
    for name, gauge in GAUGES.items():
        gauge.set(fields[name])
