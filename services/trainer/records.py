"""What rank 0 writes down: TRAINER records, checkpoints, purges, and the step event."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from services.trainer import metrics
from services.trainer.adapters import trained_form
from services.trainer.agenda import Agenda
from services.trainer.bus import NatsThread
from services.trainer.checkpoint import CheckpointManifest, CheckpointStore
from services.trainer.claim import Claim
from services.trainer.evaluations import Evaluations
from services.trainer.forks import wanted_by_forks
from services.trainer.progress import Progress
from services.trainer.purge import purge
from services.trainer.report import StepReport
from sluice.telemetry import Logger, log_policy_version
from sluice.transport.log import FencedLog
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_event
from sluice.types import Checkpoint, PolicyVersion, TrainerRecord, Version
from sluice.weights.manifest import Manifest


class Recorder:
    """Rank 0's hand on the run. A refused append is a FencedError and ends the process."""

    def __init__(  # noqa: PLR0913 (rank 0 is where everything meets; all by keyword)
        self,
        *,
        nats: NatsThread,
        bus: Bus,
        claim: Claim,
        log: Logger,
        records: FencedLog[TrainerRecord],
        agenda: Agenda,
        store: CheckpointStore,
        world_size: int,
        weights_address: str | None,
        evaluations: Evaluations,
    ) -> None:
        self._nats, self._bus, self._claim, self._log = nats, bus, claim, log
        self._records, self._agenda, self._store = records, agenda, store
        self._kept = list(claim.checkpoints)
        self._verified: Checkpoint | None = self._kept[-1] if self._kept else None
        self._world_size, self._address = world_size, weights_address
        self._form = trained_form(claim.spec)
        self._evaluations = evaluations
        self._best: Checkpoint | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._sealing: Future[Checkpoint] | None = None

    def announce(self, version: PolicyVersion, path: Path, manifest: Manifest, chain: str) -> None:
        """Store the VERSION record: from here on workers use these weights."""
        uri = f"grpc://{self._address}" if self._address else path.as_uri()
        self._append(Version(version, uri, manifest.hash, chain))
        metrics.published(version.number, manifest.nbytes)
        log_policy_version(version)
        self._log.info("version_published", uri=uri)

    def begin_checkpoint(self, version: PolicyVersion) -> Path:
        """The folder that all ranks write into; one checkpoint is sealed at a time."""
        self.settle(wait=True)
        return self._store.begin(version.number, version.lineage)

    def seal_checkpoint(self, folder: Path, version: PolicyVersion, chain: str, progress: Progress) -> None:
        """Begin to hash, sync and rename the folder, in a thread: the next batch need not wait for the disk."""
        manifest = CheckpointManifest(
            run_id=self._claim.run_id,
            k=version.number,
            lineage=version.lineage,
            chain=chain,
            ledger_sequence=max(self._agenda.covered, self._claim.created[0]),
            config_hash=self._claim.config_hash,
            optimizer_updates=progress.updates,
            world_size=self._world_size,
            updated_steps=progress.updated_steps,
            lora=self._form,
        )
        # The record that created the run is in every copy: each checkpoint tells by itself what it belongs to.
        copy = [self._claim.created, *(r for r in self._agenda.records if r[0] != self._claim.created[0])]
        self._sealing = self._disk.submit(self._store.commit, folder, manifest, copy)
        self._sealing.add_done_callback(lambda _: self._agenda.wake())  # no batch may come for long to settle it
        self._agenda.saved()

    def settle(self, wait: bool) -> None:
        """Once a checkpoint is sealed: store its record, then purge up to what the one before it needs.

        With `wait` it is stored when this returns; without, only if the disk is done. And mark the best one by now.
        """
        if self._sealing is not None and (wait or self._sealing.done()):
            self._store_checkpoint(self._sealing)
        if self._mark_best():
            self._prune()

    def _store_checkpoint(self, sealing: Future[Checkpoint]) -> None:
        with metrics.waiting("checkpoint"):
            record = sealing.result()
        self._sealing = None
        self._append(record)
        self._purge()
        self._verified = record
        self._kept.append(record)
        self._prune()
        metrics.checkpointed(record.k)
        self._log.info("checkpoint_stored", k=record.k, path=record.path)

    def _mark_best(self) -> bool:
        """Whether it is another one now. The evaluations tell: after a restart the same records lead to the same."""
        best = self._evaluations.best(self._kept)
        if best is None or best[0] == self._best:
            return False
        self._best, evaluation = best
        self._store.mark_best(self._best)
        self._log.info("best_checkpoint", k=self._best.k, path=self._best.path, scores=evaluation.main_scores)
        return True

    def _prune(self) -> None:
        self._mark_best()  # before the one that was it may go
        wanted = self._nats.call(wanted_by_forks(self._bus, self._claim.run_id), wait="forks")
        wanted |= self._evaluations.wanted(self._kept)
        self._kept = self._store.prune(self._kept, self._claim.spec.checkpoint, wanted)

    def needed(self, versions: Sequence[PolicyVersion]) -> Collection[PolicyVersion]:
        """Versions that an evaluation is made of, or waits to be."""
        return self._evaluations.needed(versions)

    def report(self, report: StepReport) -> None:
        """Tell people about a finished training step."""
        metrics.observe(report)
        fields = report.fields()
        self._nats.call(publish_event(self._bus, self._claim.run_id, "step", fields), wait="step event")
        if overflows := report.outcome.overflows:
            self._log.warning("gradient_overflowed", step=report.batch.k, times=overflows, knob="model.trainer_dtype")
        shown = ("step", "loss", "grad_norm", "reward_mean_kept", "entropy", "staleness_max", "seconds")
        groups = [group.n for group in report.batch.groups]
        self._log.info("step", **{name: fields[name] for name in shown}, groups=groups)

    def _append(self, record: TrainerRecord) -> None:
        self._nats.call(self._records.append(record), wait="trainer record")

    def _purge(self) -> None:
        """With p the newest verified checkpoint before the one just written: up to the floors in BATCH p − 1."""
        floors = self._agenda.floors.get(self._verified.k - 1) if self._verified else None
        if floors is not None:
            self._nats.call(purge(self._bus, self._claim.run_id, floors), wait="purge")
