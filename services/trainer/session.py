"""One rank's life with one run, wired: claimed, loaded, followed to its end."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.trainer import metrics
from services.trainer.agenda import BEAT_SECONDS, Agenda
from services.trainer.bus import NatsThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.claim import Claim, check_claim, check_ranks, claim_run, fit_to_ranks, wait_for_run
from services.trainer.config import TrainerSettings
from services.trainer.evaluations import Evaluations
from services.trainer.ledger import LedgerFeed
from services.trainer.loop import follow
from services.trainer.presence import keep_present
from services.trainer.purge import room_is_wanted
from services.trainer.ranks import Ranks
from services.trainer.records import Recorder
from services.trainer.sweep import sweep
from services.trainer.wiring import Parts, make_trainer
from sluice.errors import ConfigError, DivergedError, PermanentError, RunFailedError, SluiceError
from sluice.listening import check_listening
from sluice.telemetry import Logger, instance_name, log_context
from sluice.transport.lease import Lease
from sluice.transport.log import FencedLog
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_event
from sluice.types import Floors, TrainerRecord, TrainingFailed
from sluice.weights.server import WeightServer

T = TypeVar("T")
HOPELESS = (ConfigError, DivergedError, PermanentError)
"""What no restart can mend: the run's own fault, not this process's."""
CLAIM_SECONDS = 3600.0
"""A checkpoint is read in full before its run is claimed, and may be large."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a rank has before it has a run."""

    settings: TrainerSettings
    parts: Parts
    log: Logger

    @property
    def nats(self) -> NatsThread:
        return self.parts.nats

    @property
    def bus(self) -> Bus:
        return self.parts.bus

    @property
    def ranks(self) -> Ranks:
        return self.parts.ranks

    def run(self) -> None:
        """Wait for a run, train it to its end, and give its lease back.

        Raises:
            SluiceError: what ended it early; the caller turns it into an exit code.
        """
        run_id, lease = self._wait_for_run()
        try:
            with log_context(run=run_id):
                self._serve(run_id)
        finally:
            if lease is not None:
                self.nats.call(lease.release(), "lease")

    def _wait_for_run(self) -> tuple[str, Lease | None]:
        """Rank 0 looks for one; the others hear from it every few seconds that there is none yet."""
        search: concurrent.futures.Future[tuple[str, Lease]] | None = None
        if self.ranks.first:
            holder, ttl = instance_name("trainer"), self.settings.lease_seconds
            search = self.nats.start(wait_for_run(self.bus, holder, ttl, self._sweep))
        self.log.info("waiting", wait="run")
        with metrics.waiting("run"):
            while True:
                found = _result(search) if search else None
                if run_id := self.ranks.share(found[0] if found else ""):
                    return run_id, found[1] if found else None

    def _serve(self, run_id: str) -> None:
        claim, records = self._claim(run_id)
        self.log.info("run_claimed", lineage=claim.lineage, k=claim.k)
        if records is not None:  # rank 0 speaks for all
            metrics.serve(run_id, claim.lineage)
            self.nats.start(keep_present(self.bus, run_id, instance_name("trainer")))  # ends with the thread
        try:
            check_ranks(claim, self.ranks.world_size)
            self._train(claim, records)
        except SluiceError as error:
            if records is not None:
                kind = "diverged" if isinstance(error, DivergedError) else "trainer_failed"
                self.nats.call(publish_event(self.bus, run_id, "alarm", {"alarm": kind, "error": str(error)}), "alarm")
            if not isinstance(error, HOPELESS):
                raise
            if records is not None:
                # On record, so that nobody tries the same again: the coordinator ends the run.
                self.nats.call(records.append(TrainingFailed(claim.lineage, str(error))), "trainer record")
            raise RunFailedError(str(error)) from error

    def _claim(self, run_id: str) -> tuple[Claim, FencedLog[TrainerRecord] | None]:
        """Rank 0 claims; every rank checks that it can serve what was claimed."""
        claim: Claim | None = None
        records: FencedLog[TrainerRecord] | None = None
        failure: SluiceError | None = None
        if self.ranks.first:
            try:
                claimed = claim_run(self.bus, run_id, instance_name("trainer"), self.log)
                claim, records = self.nats.call(claimed, "claim", CLAIM_SECONDS)
                claim = fit_to_ranks(claim, self.ranks.world_size, self.log, self._universal_root(claim))
                if claim.spec.weights.transport == "grpc":
                    check_listening(self.settings.weights_bind, "SLUICE_WEIGHTS_BIND")
            except SluiceError as error:
                failure = error
        self.ranks.agree(failure)
        claim = self.ranks.share(claim)
        check_claim(claim, self.settings.allow_remote_code, self.parts.ranks.world_size)
        return claim, records

    def _train(self, claim: Claim, records: FencedLog[TrainerRecord] | None) -> None:
        # Held here until the run is over: a server that nobody refers to is stopped by the garbage collector.
        weight_server = None if records is None else self._weight_server(claim)
        agenda = None if records is None else self._agenda(claim)
        recorder = None
        if records is not None and agenda is not None:
            recorder = self._recorder(claim, records, agenda, weight_server)
        trainer = make_trainer(self.parts, claim, self.settings.weights_dir, recorder, recorder)
        follow(trainer, agenda, self.ranks)
        if weight_server is not None:
            self.nats.call(weight_server.stop(), "weights server")

    def _universal_root(self, claim: Claim) -> Path | None:
        """Nothing is written beside a checkpoint of another run, whose trainer may clear up there."""
        foreign = claim.restored is not None and claim.restored.foreign
        return self.settings.checkpoints_dir / claim.run_id if foreign else None

    async def _sweep(self) -> None:
        await sweep(self.bus, self.settings.weights_dir, self.settings.checkpoints_dir, self.log)

    def _agenda(self, claim: Claim) -> Agenda:
        feed = LedgerFeed(self.nats, self.bus, claim.run_id)

        def room_wanted(floors: Floors) -> bool:
            return self.nats.call(room_is_wanted(self.bus, claim.run_id, floors), "stream sizes")

        agenda = Agenda(feed, claim.spec, room_wanted, self.log)
        agenda.go_on(claim.skipped, claim.resumed_at)
        if claim.restored is not None:
            agenda.resume(claim.k, claim.covered)
        return agenda

    def _recorder(
        self, claim: Claim, records: FencedLog[TrainerRecord], agenda: Agenda, weight_server: WeightServer | None
    ) -> Recorder:
        return Recorder(
            nats=self.nats,
            bus=self.bus,
            claim=claim,
            log=self.log,
            records=records,
            agenda=agenda,
            store=CheckpointStore(self.settings.checkpoints_dir, claim.run_id),
            world_size=self.ranks.world_size,
            weights_address=None if weight_server is None else self.settings.weights_advertise or weight_server.address,
            evaluations=Evaluations(self.nats, self.bus, claim),
        )

    def _weight_server(self, claim: Claim) -> WeightServer | None:
        """Serves weights to the workers, or None when they read the shared folder."""
        if claim.spec.weights.transport != "grpc":
            return None
        return self.nats.call(
            WeightServer.start(self.settings.weights_dir, self.settings.weights_bind), "weights server"
        )


def _result(search: concurrent.futures.Future[T]) -> T | None:
    """What the search found, or None when it is still looking after BEAT_SECONDS."""
    try:
        return search.result(BEAT_SECONDS)
    except concurrent.futures.TimeoutError:
        if search.done():
            raise
        return None
