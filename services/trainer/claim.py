"""How a trainer takes a run: which one, from which checkpoint, and the record that fences other trainers off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from nats.js.errors import KeyNotFoundError, NoKeysError

from services.trainer import chain
from services.trainer.checkpoint import CheckpointManifest, verify
from services.trainer.universal import universal_form
from sluice.config import RunSpec, parse_run_spec
from sluice.errors import ConfigError, PermanentError, RunFailedError
from sluice.telemetry import Logger
from sluice.transport.lease import Lease
from sluice.transport.log import FencedLog, last_sequence, ledger_log, read_stream, trainer_log
from sluice.transport.nats import Bus
from sluice.types import (
    Batch,
    Checkpoint,
    Drop,
    DropReason,
    LedgerRecord,
    Lineage,
    Origin,
    RunCreated,
    RunState,
    StateChange,
    TrainerRecord,
    TrainingFailed,
)
from sluice.wire import subjects
from sluice.wire.records import decode_ledger

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that was read and found whole."""

    record: Checkpoint
    manifest: CheckpointManifest
    older: tuple[Checkpoint, ...]
    """Recorded before it, oldest first; not verified."""
    universal: Path | None = None
    """Its universal form, when another number of ranks wrote it."""
    foreign: bool = False
    """It is another run's, from which this one starts: the run has none of its own yet."""
    untouched: bool = False
    """Another number of ranks wrote it before any update: the model is as it was, and no state is there to convert."""

    @property
    def folder(self) -> Path:
        """What the engine loads."""
        return self.universal or Path(self.record.path)


@dataclass(frozen=True, slots=True)
class Claim:
    """A run in this trainer's hands: what every rank must know to begin."""

    run_id: str
    spec: RunSpec
    config_hash: str
    lineage: int
    restored: Restored | None
    created: tuple[int, bytes] = (0, b"")
    """LEDGER sequence and bytes of the record that created the run."""
    skipped: frozenset[int] = frozenset()
    """Groups of batches that are to be passed over."""
    resumed_at: int = 0
    """LEDGER sequence of the last record by which the run, which had failed, went on: no end before it is one."""

    @property
    def k(self) -> int:
        """Batches that are in the weights at the start."""
        return self.restored.record.k if self.restored else 0

    @property
    def covered(self) -> int:
        """The last LEDGER record that was acted on before."""
        return self.restored.manifest.ledger_sequence if self.restored and not self.restored.foreign else 0

    @property
    def chain(self) -> str:
        """Hex of h(k)."""
        if self.restored is None:
            return chain.genesis(self.config_hash)
        found = self.restored.manifest.chain
        return chain.forked(found, self.config_hash) if self.restored.foreign else found

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The run's own that it may still have, oldest first, up to the one that was restored."""
        restored = self.restored
        return () if restored is None or restored.foreign else (*restored.older, restored.record)

    @property
    def updates(self) -> int:
        """Optimizer updates that are in the weights at the start."""
        return self.restored.manifest.optimizer_updates if self.restored else 0

    @property
    def updated_steps(self) -> int:
        """Training steps that made them."""
        found = self.restored.manifest.updated_steps if self.restored else 0
        return self.k if found is None else found


async def wait_for_run(
    bus: Bus, holder: str, lease_seconds: float, meanwhile: Callable[[], Awaitable[None]]
) -> tuple[str, Lease]:
    """The oldest run that is not over and whose lease is free, with that lease; looks once a second, and does
    `meanwhile` as often. A run that no coordinator can hold is left until one can."""
    while True:
        for run_id in await _live_runs(bus):
            lease = await Lease.acquire(bus, f"trainer.{run_id}", holder, lease_seconds)
            if lease is not None:
                return run_id, lease
        await meanwhile()
        await asyncio.sleep(POLL_SECONDS)


async def claim_run(bus: Bus, run_id: str, holder: str, log: Logger) -> tuple[Claim, FencedLog[TrainerRecord]]:
    """Read the run, choose the newest whole checkpoint, and append LINEAGE before anything is loaded.

    A run that has none yet starts from its model, or from the checkpoint of another run that it was forked from.

    Raises:
        FencedError: another trainer claimed the run at the same time.
        RunFailedError: the checkpoint that it was forked from is gone or damaged, which is on record now.
        ConfigError: the run's spec cannot be read by this release.
        PermanentError: NATS has lost ledger records that the checkpoint covers.
    """
    created, first = await _first_record(bus, run_id)
    spec = parse_run_spec(json.loads(created.spec_json))
    records = trainer_log(bus, run_id)
    entries = await records.read()
    restored = await asyncio.to_thread(_newest_whole, [e.record for e in entries], log)
    if restored is not None:
        end = await last_sequence(bus, subjects.LEDGER, subjects.ledger(run_id))
        if end < restored.manifest.ledger_sequence:
            raise PermanentError(
                f"LEDGER of run {run_id} ends at sequence {end}, checkpoint {restored.record.path} covers "
                f"{restored.manifest.ledger_sequence}: NATS lost records; its ledger.bin holds a copy"
            )
    starts = [(entry.record.lineage, entry.time) for entry in entries if isinstance(entry.record, Lineage)]
    if starts:
        await _keep_interval(spec, starts[-1][1], log)
    lineage = 1 + max((lineage for lineage, _ in starts), default=0)
    await records.append(Lineage(lineage, holder, restored.record.k if restored else created.first_step))
    if restored is None and created.origin is not None:
        restored = await _of_another_run(created.origin, lineage, records)
    claim = Claim(run_id, spec, created.config_hash, lineage, restored, first)
    failed = any(isinstance(entry.record, TrainingFailed) for entry in entries)
    return await _told_to_go_on(bus, claim) if failed else claim, records


async def _told_to_go_on(bus: Bus, claim: Claim) -> Claim:
    """With what a person has decided about earlier failures; nothing is decided while a trainer has the run."""
    ledger = await ledger_log(bus, claim.run_id).read()
    resumed = [e.sequence for e in ledger if isinstance(e.record, StateChange) and e.record.state is RunState.RUNNING]
    skipped = skipped_groups(entry.record for entry in ledger)
    return replace(claim, skipped=skipped, resumed_at=max(resumed, default=0))


def skipped_groups(records: Iterable[LedgerRecord]) -> frozenset[int]:
    """The groups of skipped batches, as LEDGER names them."""
    drops = (record for record in records if isinstance(record, Drop) and record.reason is DropReason.SKIPPED_BATCH)
    return frozenset(n for drop in drops for n in drop.groups)


def without_skipped(batch: Batch, skipped: Collection[int]) -> Batch:
    """The batch as it is trained: a skipped one has no groups."""
    return replace(batch, groups=tuple(group for group in batch.groups if group.n not in skipped))


async def _of_another_run(origin: Origin, lineage: int, records: FencedLog[TrainerRecord]) -> Restored:
    """The checkpoint that a run was forked from, verified."""
    try:
        return Restored(origin.checkpoint, await asyncio.to_thread(verify, origin.checkpoint), (), foreign=True)
    except PermanentError as error:
        reason = f"this run was forked from run {origin.run_id}, of which {error}; fork a checkpoint that is there"
        await records.append(TrainingFailed(lineage, reason))
        raise RunFailedError(reason) from None


async def _keep_interval(spec: RunSpec, last_start: datetime, log: Logger) -> None:
    """A trainer that dies at once is not started again at once."""
    since = (datetime.now(UTC) - last_start).total_seconds()
    rest = spec.retry.restart_interval_seconds - since
    if rest > 0:
        log.info("restart_delayed", seconds=round(rest, 1), knob="retry.restart_interval_seconds")
        await asyncio.sleep(rest)


def fit_to_ranks(claim: Claim, world_size: int, log: Logger, root: Path | None = None) -> Claim:
    """The claim with a checkpoint that so many ranks can begin with: converted, if another number wrote it.

    The converted one lies beside the checkpoint, or in `root`, which must be there if the checkpoint is another run's.

    Raises:
        PermanentError: it cannot be converted.
    """
    restored = claim.restored
    if restored is None or restored.manifest.world_size == world_size or claim.spec.trainer.zero_stage == 0:
        return claim  # stage 0 shards nothing
    if restored.manifest.optimizer_updates == 0:
        return replace(claim, restored=replace(restored, untouched=True))
    return replace(claim, restored=replace(restored, universal=universal_form(restored.record, log, root)))


def check_claim(claim: Claim, allow_remote_code: bool, world_size: int) -> None:
    """What this deployment must agree to before it loads anything.

    A run with a checkpoint of its own has been trained here, so that a number of ranks that does not fit is the
    deployment's fault, and the run stays. Without one the run asks for too much: `check_ranks` ends it once it is
    claimed, or it would end one trainer after the other.

    Raises:
        ConfigError: code of the model that is not allowed, or a number of ranks that cannot share micro-batches.
    """
    if claim.restored is not None and not claim.restored.foreign:
        check_ranks(claim, world_size)
    if claim.spec.model.trust_remote_code and not allow_remote_code:
        raise ConfigError("model.trust_remote_code = true needs SLUICE_ALLOW_REMOTE_CODE=1 in the deployment")


def check_ranks(claim: Claim, world_size: int) -> None:
    """That the ranks can share micro-batches as the run says.

    Raises:
        ConfigError: they cannot.
    """
    shared = claim.spec.trainer.sequence_parallel
    if world_size % shared:
        raise ConfigError(
            f"trainer.sequence_parallel = {shared} must divide the number of trainer ranks, WORLD_SIZE={world_size} "
            f"(`sluice up --trainer-ranks`); start {shared} or a multiple for run {claim.run_id}"
        )


async def _live_runs(bus: Bus) -> list[str]:
    bucket = await bus.bucket(subjects.RUNS_BUCKET)
    found = []
    try:
        for run_id in await bucket.keys():
            entry = json.loads((await bucket.get(run_id)).value or b"{}")
            if not RunState(entry["state"]).terminal and not entry.get("problem"):
                found.append((entry["created_at"], run_id))
    except (NoKeysError, KeyNotFoundError):
        return []
    return [run_id for _, run_id in sorted(found)]


async def _first_record(bus: Bus, run_id: str) -> tuple[RunCreated, tuple[int, bytes]]:
    async for sequence, payload, _ in read_stream(bus, subjects.LEDGER, subjects.ledger(run_id)):
        record = decode_ledger(payload)
        if isinstance(record, RunCreated):
            return record, (sequence, payload)
        break
    raise ConfigError(f"LEDGER of run {run_id} does not begin with its spec")


def _newest_whole(records: Sequence[TrainerRecord], log: Logger) -> Restored | None:
    checkpoints = [r for r in records if isinstance(r, Checkpoint)]
    while checkpoints:
        record = checkpoints.pop()
        try:
            return Restored(record, verify(record), tuple(checkpoints))
        except PermanentError as error:
            log.warning("checkpoint_unusable", path=record.path, error=str(error))
    return None
