"""Training a recorded run's batches again, by ranks that nothing happens to, and looking whether it comes out the same.

Nothing of the run is changed: no lease, no record, no purge; weights go to a folder that is thrown away.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from services.trainer.agenda import Train
from services.trainer.bus import NatsThread
from services.trainer.checkpoint import verify
from services.trainer.claim import Claim, Restored, check_claim, fit_to_ranks
from services.trainer.config import TrainerSettings
from services.trainer.replay.comparison import Comparison, Row
from services.trainer.replay.recording import Recording, read_recording
from services.trainer.wiring import Parts, make_trainer
from sluice.config import RunSpec
from sluice.errors import ConfigError, PermanentError, SluiceError, TransientError
from sluice.telemetry import Logger
from sluice.types import Batch, Checkpoint, Version
from sluice.weights.fetch import fetch_version
from sluice.wire.checkpoint import record_of

CALL_SECONDS = 3600.0
"""Longest time to read a run's records, or a large version's weights."""
FETCH_SECONDS = 10.0
"""Recorded weights that cannot be had within this long are gone; a replay can do without."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found."""

    run_id: str
    start: int
    """Training steps that were in the weights when it began."""
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What every rank must know."""

    claim: Claim
    batches: tuple[Batch, ...]


def replay(parts: Parts, settings: TrainerSettings, run_id: str, start: str | None, log: Logger) -> Replay:
    """Train the batches again from `start`, and compare. A collective call; rank 0's answer has the rows.

    Args:
        start: a training step with a checkpoint (0: the initial policy), the folder of a checkpoint, or None: as early
            as the rollouts that are left allow.

    Raises:
        ConfigError: there is no such run, or its batches cannot be trained again from there.
        SluiceError: as in training.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-replay-") as scratch:
        comparison, plan = _prepare(parts, settings, run_id, start, Path(scratch), log)
        trainer = make_trainer(parts, plan.claim, Path(scratch) / "weights", comparison, None)
        trainer.publish()
        for batch in plan.batches:
            trainer.step(Train(batch, save=False))
            log.info("step_replayed", step=batch.k)
    return Replay(run_id, plan.claim.k, comparison.rows if comparison else [])


def _prepare(
    parts: Parts, settings: TrainerSettings, run_id: str, start: str | None, scratch: Path, log: Logger
) -> tuple[Comparison | None, _Plan]:
    """Rank 0 reads and decides; the others hear of it."""
    plan: _Plan | None = None
    comparison: Comparison | None = None
    failure: SluiceError | None = None
    if parts.ranks.first:
        try:
            recording = parts.nats.call(read_recording(parts.bus, run_id), "recording", CALL_SECONDS)
            claim = fit_to_ranks(_claim(recording, start, parts.ranks.world_size), parts.ranks.world_size, log, scratch)
            plan = _Plan(claim, recording.batches_from(claim.k))
            comparison = Comparison(recording, lambda version: _recorded_folder(parts.nats, version, scratch))
        except SluiceError as error:
            failure = error
    parts.ranks.agree(failure)
    plan = parts.ranks.share(plan)
    check_claim(plan.claim, settings.allow_remote_code, parts.ranks.world_size)
    return comparison, plan


def _claim(recording: Recording, start: str | None, world_size: int) -> Claim:
    """The run as a replay takes it: no lineage of its own, nothing older to go back to, and for other ranks."""
    created = recording.created
    record = _checkpoint_at(recording, start)
    try:
        foreign = created.origin is not None and record == created.origin.checkpoint
        restored = None if record is None else Restored(record, verify(record), (), foreign=foreign)
    except PermanentError as error:
        raise ConfigError(f"a replay cannot start there: {error}") from None
    return Claim(created.run_id, regrouped(recording.spec, world_size), created.config_hash, 0, restored)


def regrouped(spec: RunSpec, world_size: int) -> RunSpec:
    """The spec with micro-batches as large, shared by as many ranks as there are for it."""
    shared = math.gcd(spec.trainer.sequence_parallel, world_size)
    changes = {"sequence_parallel": shared, "max_tokens_per_micro_batch": spec.micro_batch_tokens // shared}
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update=changes)})


def _checkpoint_at(recording: Recording, start: str | None) -> Checkpoint | None:
    if start is None or start.isdecimal():
        return recording.start(None if start is None else int(start))[1]
    run_id, record = record_of(Path(start))
    if run_id != recording.created.run_id:
        raise ConfigError(f"--from {start}: that is a checkpoint of run {run_id}")
    recording.check_from(record.k)
    return record


def _recorded_folder(nats: NatsThread, version: Version, scratch: Path) -> Path | None:
    """Where the recorded weights are; None: they are gone, or nobody serves them any more."""
    fetching = fetch_version(version, scratch / "recorded", FETCH_SECONDS)
    try:
        return nats.call(fetching, "weights", CALL_SECONDS)[0]
    except (PermanentError, TransientError):
        return None
