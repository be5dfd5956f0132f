"""All metrics of the trainer; rank 0 serves them. A trainer process serves one run, so its series end with it.

Where `run` is empty, the trainer had no run yet.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from prometheus_client import Gauge

from services.trainer.report import StepReport
from sluice.run_series import STALENESS, RunSeries
from sluice.timesheet import TimeSheet
from sluice.transport.nats import RETRIES
from sluice.waits import Waits

SECONDS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
LOAD, WAIT = "load", "wait"

_series = RunSeries()

PHASE_SECONDS = _series.histogram(
    "sluice_trainer_phase_seconds",
    "Seconds of a training step by phase: wait, fetch, train, publish, checkpoint, and their total.",
    "phase",
    buckets=SECONDS,
)
TIME_SECONDS = _series.counter(
    "sluice_trainer_time_seconds_total",
    "Where the trainer's time goes, one thing at a time: load, wait, fetch, train, publish, checkpoint.",
    "doing",
)
VERSION = _series.gauge("sluice_trainer_policy_version", "Number of the newest published policy version.")
LINEAGE = _series.gauge("sluice_trainer_lineage", "Lineage of this trainer.")
STEPS = _series.counter("sluice_trainer_steps_total", "Training steps done by this process, replayed ones included.")
UPDATES = _series.counter("sluice_trainer_updates_total", "Optimizer updates done by this process.")
OVERFLOWS = _series.counter(
    "sluice_trainer_gradient_overflows_total",
    "Gradients thrown away and made again, because they overflowed under the loss scale of float16.",
)
STALENESS_VERSIONS = _series.histogram(
    "sluice_trainer_staleness_versions", "Staleness of each rollout when it is consumed.", buckets=STALENESS
)
TOKENS = _series.counter(
    "sluice_trainer_tokens_total",
    "Tokens consumed: prompt, response, and computed, which counts padding and each shared prompt once.",
    "kind",
)
PUBLISHED_BYTES = _series.counter("sluice_trainer_published_bytes_total", "Bytes of the published policy versions.")
GAUGES = {
    name: _series.gauge(f"sluice_trainer_{name}", f"Of the last training step: {text}.")
    for name, text in {
        "loss": "loss",
        "grad_norm": "gradient norm before clipping, mean over its updates",
        "lr": "learning rate",
        "entropy": "mean token entropy in nats",
        "mean_token_probability": "mean probability of its response tokens",
        "grad_norm_max": "largest gradient norm of its updates, before clipping",
        "grad_clipped_fraction": "share of its updates whose gradient was clipped",
        "clip_fraction_high": "share of tokens clipped above",
        "clip_fraction_low": "share of tokens clipped below",
        "dual_clip_fraction": "share of tokens under the dual clip",
        "approx_kl": "mean log-ratio proximal to current, in nats",
        "approx_kl_k3": "mean k3 estimate of that divergence, in nats",
        "kl_loss": "mean estimate of the divergence from the reference model, in nats; 0 without one",
        "ratio_max": "largest ratio of current to proximal policy",
        "logprob_gap_mean": "mean |trainer − behaviour| log-prob, in nats",
        "logprob_gap_max": "largest |trainer − behaviour| log-prob, in nats",
        "prob_correlation": "correlation of the probabilities that trainer and behaviour policy give to its tokens",
        "importance_weight_mean": "mean importance weight, as applied",
        "effective_sample_size": "share of its tokens that the importance weights leave, as a sample",
        "rejected_token_fraction": "share of its tokens that rejection left out",
        "reward_mean_kept": "mean reward of the kept groups",
        "acc_mean_kept": "mean accuracy of the kept groups",
        "response_length_mean": "mean response length of the kept groups, in tokens",
        "response_length_max": "longest response of the kept groups, in tokens",
        "truncated_share": "share of the kept groups' rollouts cut at max_response_length",
        "staleness_mean": "mean staleness of its rollouts",
        "staleness_max": "largest staleness of its rollouts",
        "tokens_per_second": "prompt and response tokens by its whole time, waiting included",
    }.items()
}
WAITING = _series.gauge("sluice_trainer_waiting", "1 while the trainer waits for this.", "wait")
WAIT_SECONDS = _series.counter("sluice_trainer_wait_seconds_total", "Seconds spent waiting, by name.", "wait")
CHECKPOINT = _series.gauge("sluice_trainer_checkpoint_number", "Batches that the newest checkpoint covers.")
PEAK_MEMORY = _series.gauge(
    "sluice_trainer_peak_memory_bytes", "Most memory that rank 0 has held: of its GPU, or resident without one."
)
DISK_FREE = Gauge("sluice_trainer_disk_free_bytes", "Free space where weights and checkpoints are.", ("folder",))
DISK_SIZE = Gauge("sluice_trainer_disk_size_bytes", "Size of that file system.", ("folder",))
NATS_RETRIES = RETRIES


class _Served:
    """The run of this process, and where its time goes."""

    run = ""
    sheet: TimeSheet | None = None


_served = _Served()
_waits = Waits()


def serve(run: str, lineage: int) -> None:
    """This process serves the run from now on, and loads it first."""
    _served.run = run
    _served.sheet = TimeSheet(LOAD, lambda doing, seconds: TIME_SECONDS.labels(run, doing).inc(seconds))
    LINEAGE.labels(run).set(lineage)
    for counter in (STEPS, UPDATES, OVERFLOWS, PUBLISHED_BYTES):
        counter.labels(run)


def time_spent() -> dict[str, float]:
    """Seconds since the run is served, by what the trainer did. May be called from another thread."""
    return _served.sheet.settle() if _served.sheet else {}


@contextmanager
def doing(phase: str) -> Iterator[None]:
    """Book the time of a phase; between phases the trainer waits for the next batch."""
    if _served.sheet:
        _served.sheet.switch(phase)
    try:
        yield
    finally:
        if _served.sheet:
            _served.sheet.switch(WAIT)


@contextmanager
def waiting(name: str) -> Iterator[None]:
    """Show a wait by its name while it lasts."""
    run, begin = _served.run, time.monotonic()
    WAITING.labels(run, name).set(1)
    try:
        with _waits.waiting(name):
            yield
    finally:
        WAITING.labels(run, name).set(0)
        WAIT_SECONDS.labels(run, name).inc(time.monotonic() - begin)


def waits() -> dict[str, float]:
    """Seconds of the waits that go on now, by name. May be called from another thread."""
    return {name: round(seconds, 1) for name, seconds in _waits.longest().items()}


def published(version: int, nbytes: int) -> None:
    """A policy version was announced."""
    VERSION.labels(_served.run).set(version)
    PUBLISHED_BYTES.labels(_served.run).inc(nbytes)


def checkpointed(k: int) -> None:
    """A checkpoint of all batches below `k` is stored."""
    CHECKPOINT.labels(_served.run).set(k)


def observe(report: StepReport) -> None:
    """Take one finished training step."""
    run = _served.run
    STEPS.labels(run).inc()
    UPDATES.labels(run).inc(report.updates)
    OVERFLOWS.labels(run).inc(report.outcome.overflows)
    TOKENS.labels(run, "prompt").inc(report.prompt_tokens)
    TOKENS.labels(run, "response").inc(report.response_tokens)
    TOKENS.labels(run, "computed").inc(report.computed_tokens)
    for staleness in report.staleness:
        STALENESS_VERSIONS.labels(run).observe(staleness)
    for phase, seconds in report.seconds.items():
        PHASE_SECONDS.labels(run, phase).observe(seconds)
    PEAK_MEMORY.labels(run).set(_peak_memory())
    fields = report.fields()
    for name, gauge in GAUGES.items():
        gauge.labels(run).set(fields[name])


def _peak_memory() -> int:
    """torch answers 0 for a process that uses no GPU."""
    return torch.cuda.max_memory_allocated() or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
