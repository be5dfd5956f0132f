"""What a run has stored of its training: read from the streams as they are now, changed by nobody."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.trainer.claim import skipped_groups, without_skipped
from sluice.config import RunSpec, parse_run_spec
from sluice.errors import ConfigError
from sluice.transport.log import ledger_log, read_stream, trainer_log
from sluice.transport.nats import Bus
from sluice.types import Batch, Checkpoint, RunCreated, TrainerRecord, Version
from sluice.wire import subjects


@dataclass(frozen=True, slots=True)
class Recording:
    """A run's batches and what training them gave."""

    created: RunCreated
    spec: RunSpec
    batches: tuple[Batch, ...]
    """Those whose policy version was published; the first one has the index `created.first_step`."""
    versions: tuple[Version, ...]
    """In the order of their publication, every lineage."""
    checkpoints: tuple[Checkpoint, ...]
    steps: Mapping[int, Mapping[str, Any]]
    """Fields of the step event by training step, the newest lineage's; events are kept for a day."""
    retained_from: int | None
    """The lowest ROLLOUTS sequence that is left; None: nothing is."""

    def version(self, number: int) -> Version | None:
        """The version of this number, of the newest lineage that published it."""
        return next((v for v in reversed(self.versions) if v.version.number == number), None)

    def parent(self, of: Version) -> Version | None:
        """The version that its manifest names: the one before it in its lineage, if that lineage published it."""
        wanted = (of.version.number - 1, of.version.lineage)
        return next((v for v in self.versions if (v.version.number, v.version.lineage) == wanted), None)

    @property
    def end(self) -> int:
        """Training steps that are in the newest weights."""
        return self.created.first_step + len(self.batches)

    def batches_from(self, k: int) -> tuple[Batch, ...]:
        """Batch k and all after it."""
        return self.batches[k - self.created.first_step :]

    def is_retained(self, batch: Batch) -> bool:
        """Whether all rollouts of the batch are still there."""
        sequences = [sequence for g in batch.groups for r in g.rollouts for sequence in r.sequences]
        return not sequences or (self.retained_from is not None and min(sequences) >= self.retained_from)

    def starts(self) -> dict[int, Checkpoint | None]:
        """Where a replay can start, by training step: at the initial policy (None), or at a checkpoint that is here."""
        origin = self.created.origin
        found: dict[int, Checkpoint | None] = {self.created.first_step: origin.checkpoint if origin else None}
        found |= {record.k: record for record in self.checkpoints if Path(record.path).is_dir()}
        return found

    def earliest_start(self) -> int:
        """The first training step from which every batch can be trained again.

        Raises:
            ConfigError: there is none; the text says what is left.
        """
        purged = max((batch.k for batch in self.batches if not self.is_retained(batch)), default=-1)
        possible = [k for k in self.starts() if purged < k < self.end]
        if not possible:
            there = sorted(record.k for record in self.checkpoints if Path(record.path).is_dir())
            raise ConfigError(
                f"run {self.created.run_id}: of its {len(self.batches)} trained batches those below {purged + 1} have "
                f"lost their rollouts, and no checkpoint between there and the end is here (here: {there or 'none'}); "
                f"checkpoint.keep and checkpoint.interval decide what stays"
            )
        return min(possible)

    def start(self, wanted: int | None) -> tuple[int, Checkpoint | None]:
        """Where to start: the step that was asked for, or the earliest.

        Raises:
            ConfigError: nothing can be trained again from there.
        """
        if not self.batches:
            raise ConfigError(f"run {self.created.run_id} has trained nothing yet: there is nothing to replay")
        k = self.earliest_start() if wanted is None else wanted
        starts = self.starts()
        if k not in starts:
            raise ConfigError(f"--from {k}: no checkpoint of that step is here; a replay can start at {sorted(starts)}")
        self.check_from(k)
        return k, starts[k]

    def check_from(self, k: int) -> None:
        """Raises: ConfigError: batch k, or one after it, is not there to be trained again."""
        if not self.created.first_step <= k < self.end:
            begin = self.created.first_step
            raise ConfigError(
                f"--from {k}: the run has trained batches {begin} to {self.end - 1}, and none from there on"
            )
        if gone := [batch.k for batch in self.batches_from(k) if not self.is_retained(batch)]:
            raise ConfigError(
                f"--from {k}: the rollouts of batches {gone[0]} to {gone[-1]} are purged; start after them"
            )


async def read_recording(bus: Bus, run_id: str) -> Recording:
    """Everything a replay needs but the rollouts. Raises: ConfigError: there is no such run."""
    ledger = [entry.record for entry in await ledger_log(bus, run_id).read()]
    if not ledger or not isinstance(ledger[0], RunCreated):
        raise ConfigError(f"there is no run {run_id!r} on this NATS server; `sluice runs` lists them")
    trainer: list[TrainerRecord] = [entry.record for entry in await trainer_log(bus, run_id).read()]
    versions = tuple(record for record in trainer if isinstance(record, Version))
    skipped = skipped_groups(ledger)
    trained = max((version.version.number for version in versions), default=0)
    return Recording(
        created=ledger[0],
        spec=parse_run_spec(json.loads(ledger[0].spec_json)),
        batches=tuple(
            without_skipped(record, skipped) for record in ledger if isinstance(record, Batch) and record.k < trained
        ),
        versions=versions,
        checkpoints=_newest_lineages(record for record in trainer if isinstance(record, Checkpoint)),
        steps={fields["step"]: fields for fields in await _step_events(bus, run_id)},
        retained_from=await _first_sequence(bus, run_id),
    )


def _newest_lineages(records: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    return tuple({record.k: record for record in records}.values())


async def _step_events(bus: Bus, run_id: str) -> Sequence[dict[str, Any]]:
    source = read_stream(bus, subjects.EVENTS, subjects.event(run_id, "step"))
    return [json.loads(payload) async for _, payload, _ in source]


async def _first_sequence(bus: Bus, run_id: str) -> int | None:
    async for sequence, _, _ in read_stream(bus, subjects.ROLLOUTS, subjects.rollouts(run_id)):
        return sequence
    return None
