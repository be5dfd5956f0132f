"""What a fork takes from another run: a checkpoint, its config with changes, and the data order from there on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.coordinator.api.problems import ConflictError, InvalidError
from services.coordinator.history import RunHistory
from sluice.config import RunSpec
from sluice.data import same_prompts
from sluice.errors import ConfigError
from sluice.transport.log import Entry, ledger_log
from sluice.transport.nats import Bus
from sluice.types import Batch, Checkpoint, Origin, RunCreated
from sluice.views import CheckpointView, OriginView
from sluice.wire.checkpoint import read_ledger, record_of

FIXED = ("model.path", "model.trainer_dtype", "trainer.zero_stage", "lora")
"""What a checkpoint's weights and optimizer states are made for: no fork can change it."""
ORDER = ("data.shuffle", "data.mixing_weights", "trainer.seed")
"""What the data order follows from, beside the prompts themselves."""


def checkpoint_of(history: RunHistory, step: int | None) -> Checkpoint:
    """The checkpoint of this training step, of its newest lineage; None: the newest one.

    Raises:
        ConflictError: the run has none (yet).
        InvalidError: it has none at this step, or that one is not kept any more; names those that are there.
    """
    if not history.checkpoints:
        raise ConflictError(f"run {history.run_id} has no checkpoint yet; it gets one every checkpoint.interval steps")
    by_step = {view.k: view for view in history.checkpoints if not _is_removed(view)}
    view = by_step.get(max(by_step, default=0) if step is None else step)
    if view is None:
        raise InvalidError(
            f"run {history.run_id} has no checkpoint of training step {step or 'any'}; it has those of "
            f"{sorted(by_step)}",
            field="step",
            value=step,
            limit=sorted(by_step),
            knob="checkpoint.keep_every",
        )
    return Checkpoint(view.k, view.lineage, view.path, view.checksum, view.chain)


def _is_removed(view: CheckpointView) -> bool:
    """Whether it is surely gone. A coordinator that does not see the trainer's folder leaves it to the trainer."""
    return Path(view.path).parent.is_dir() and not Path(view.path).is_dir()


def check_fork(spec: RunSpec, parent: RunSpec, k: int) -> None:
    """Raises: InvalidError: the spec cannot go on from a checkpoint of step `k` that `parent` made."""
    ours, theirs = spec.model_dump(mode="json"), parent.model_dump(mode="json")
    for path in FIXED:
        if (value := at(ours, path)) != (fixed := at(theirs, path)):
            raise InvalidError(
                f"{path} = {value!r}: the checkpoint was made with {fixed!r}, which a run that goes on from it cannot "
                f"change; create a new run instead",
                field=path,
                value=value,
                limit=fixed,
            )
    if spec.trainer.total_steps <= k:
        raise InvalidError(
            f"trainer.total_steps = {spec.trainer.total_steps}: the checkpoint has {k} of them; set more",
            field="trainer.total_steps",
            value=spec.trainer.total_steps,
            limit=f"above {k}",
            knob="trainer.total_steps",
        )


def at(fields: dict[str, Any], path: str) -> Any:
    """The value of a dotted path in nested tables."""
    found: Any = fields
    for name in path.split("."):
        found = found[name]
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, the run that it is of, and that run's batch before it; None: it had trained none by then."""

    history: RunHistory
    checkpoint: Checkpoint
    batch: Batch | None


def origin_of(source: Source, spec: RunSpec, data: dict[str, Any]) -> Origin:
    """Where a fork with this spec and data manifest starts: the order goes on only if it is still the same order."""
    history, checkpoint = source.history, source.checkpoint
    ours, theirs = spec.model_dump(mode="json"), history.spec.model_dump(mode="json")
    if not same_prompts(data, history.data_manifest) or any(at(ours, path) != at(theirs, path) for path in ORDER):
        return Origin(history.run_id, checkpoint)
    if source.batch is None:
        before = history.origin
        return Origin(history.run_id, checkpoint, before.again if before else (), before.next_draw if before else 0)
    return Origin(history.run_id, checkpoint, *frontier(history, source.batch))


async def source_of_run(bus: Bus, history: RunHistory, checkpoint: Checkpoint) -> Source:
    """A recorded checkpoint of a run that is on this server."""
    records = [entry.record for entry in await ledger_log(bus, history.run_id).read()]
    batches = {record.k: record for record in records if isinstance(record, Batch)}
    return Source(history, checkpoint, batches.get(checkpoint.k - 1))


def source_of_folder(folder: Path) -> Source:
    """A checkpoint of a run that this server knows nothing of, from what is in its folder.

    Raises:
        ConfigError: the folder is no checkpoint, or of a release that did not keep in it what created the run.
    """
    run_id, checkpoint = record_of(folder)
    first, *records = read_ledger(folder)
    if not isinstance(first, RunCreated):
        raise ConfigError(
            f"{folder} does not hold the record that created run {run_id}: it was written by an older release; "
            f"fork the run itself, on the server that has it"
        )
    history = RunHistory(run_id)
    history.fold_ledger(Entry(0, first, datetime.now(UTC)))
    batches = {record.k: record for record in records if isinstance(record, Batch)}
    return Source(history, checkpoint, batches.get(checkpoint.k - 1))


def frontier(history: RunHistory, batch: Batch) -> tuple[tuple[int, ...], int]:
    """The draws of the data order that no record up to `batch` settles: those that were live, and the next one.

    Every draw before is in a batch, dropped for a reason, or skipped.
    """
    live = [history.draws.of(n) for issue in batch.live for n in range(issue.first, issue.first + issue.count)]
    following = batch.next_n + batch.skipped
    before = history.origin
    if before is None:
        return tuple(live), following
    inherited = range(following, len(before.again))
    return tuple(before.draw(d) for d in (*live, *inherited)), before.draw(max(following, len(before.again)))


def view_of(origin: Origin | None) -> OriginView | None:
    """As the run's status shows it."""
    if origin is None:
        return None
    return OriginView(
        run=origin.run_id,
        step=origin.checkpoint.k,
        checkpoint=origin.checkpoint.path,
        draws_again=len(origin.again),
        next_draw=origin.next_draw,
    )
