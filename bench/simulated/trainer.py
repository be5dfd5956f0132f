"""The simulated trainer: does with LEDGER, ROLLOUTS and TRAINER all that the real one does, and trains nothing.

    python -m bench.simulated.trainer --train constant:2.0

It claims a run under a lineage, fetches each batch and verifies its hashes, takes a modelled time, publishes a policy
version of eight bytes, writes checkpoints that the audit can read, and purges. Its settings are the real trainer's
environment. It serves one run after the other, and ends with code 2 for a setting at fault, 3 when it was fenced off.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from functools import partial
from pathlib import Path

from bench.simulated.latency import Latency, parse_latency
from services.trainer import chain
from services.trainer.checkpoint import CheckpointManifest, CheckpointStore
from services.trainer.claim import Claim, claim_run, wait_for_run
from services.trainer.config import TrainerSettings
from services.trainer.purge import purge
from services.trainer.sweep import sweep
from sluice.errors import ConfigError, FencedError, PermanentError, SluiceError, WireError
from sluice.telemetry import Logger, configure_logging, get_logger, instance_name, serve_metrics
from sluice.transport.log import FencedLog, follow_stream
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Batch, Checkpoint, Floors, PolicyVersion, RunState, StateChange, TrainerRecord, Version
from sluice.weights.publish import VersionWriter, remove_old
from sluice.wire import subjects
from sluice.wire.records import decode_ledger

EXIT_FAILED, EXIT_CONFIG, EXIT_FENCED = 1, 2, 3


class SimulatedTrainer:
    """One run in its hands: `k` batches are trained, `chain` is the hash chain over them."""

    def __init__(
        self, bus: Bus, claim: Claim, records: FencedLog[TrainerRecord], settings: TrainerSettings, seconds: Latency
    ) -> None:
        self._bus, self._claim, self._records = bus, claim, records
        self._weights, self._seconds = settings.weights_dir, seconds
        self._store = CheckpointStore(settings.checkpoints_dir, claim.run_id)
        self._log: Logger = get_logger("simulated-trainer").bind(run_id=claim.run_id)
        self._k = claim.k
        restored = claim.restored
        self._chain = restored.manifest.chain if restored else chain.genesis(claim.config_hash)
        self._covered = restored.manifest.ledger_sequence if restored else 0
        self._kept = [*restored.older, restored.record] if restored else []
        self._verified = restored.record if restored else None
        self._since: list[tuple[int, bytes]] = []
        self._floors: dict[int, Floors] = {}

    async def follow(self) -> None:
        """Train what LEDGER says, in its order, until the run has ended.

        Raises:
            FencedError: another trainer has the run.
            WireError: a rollout of a batch is gone, or is not the one that was scored.
        """
        await self._publish()
        subject = subjects.ledger(self._claim.run_id)
        async for sequence, payload, _ in follow_stream(self._bus, subjects.LEDGER, subject):
            record = decode_ledger(payload)
            if isinstance(record, Batch):
                self._floors[record.k] = record.floors
            if sequence <= self._covered:
                continue
            self._covered = sequence
            self._since.append((sequence, payload))
            match record:
                case Batch():
                    await self._train(record)
                case StateChange(state=RunState.PAUSED | RunState.STOPPING):
                    await self._save_if_new()
                case StateChange(state=state) if state.terminal:
                    return

    async def _train(self, batch: Batch) -> None:
        if batch.k != self._k:
            raise PermanentError(f"LEDGER holds batch {batch.k} where {self._k} belongs")
        await self._fetch(batch)
        await asyncio.sleep(self._seconds(random.Random(f"train/{batch.k}")))
        self._k += 1
        self._chain = chain.extend(self._chain, batch.groups)
        await self._publish()
        spec = self._claim.spec
        if self._k % spec.checkpoint.interval == 0 or self._k == spec.trainer.total_steps:
            await self._save()

    async def _fetch(self, batch: Batch) -> None:
        """Every rollout of the batch, by sequence, with the hash that its group names."""
        named = [(group, i, summary) for group in batch.groups for i, summary in enumerate(group.rollouts)]
        found = await fetch_rollouts(self._bus, [summary for _, _, summary in named])
        for (group, i, summary), rollout in zip(named, found, strict=True):
            wanted = (group.n, group.attempt, i, summary.length)
            if (rollout.n, rollout.attempt, rollout.i, len(rollout.token_ids)) != wanted:
                raise WireError(f"batch {batch.k} names rollout {wanted}, another one is stored there")

    async def _publish(self) -> None:
        """Policy version k under this lineage: one tensor that says which."""
        claim, version = self._claim, PolicyVersion(self._k, self._claim.lineage)

        def write() -> tuple[Path, str]:
            writer = VersionWriter(
                self._weights,
                claim.run_id,
                version,
                parent=None,
                optimizer_updates=self._k,
                config_hash=claim.config_hash,
            )
            writer.add("simulated", "F32", (2,), self._k.to_bytes(8, "little"))
            folder, manifest = writer.commit()
            remove_old(self._weights, claim.run_id, claim.spec.weights.keep, pinned=())
            return folder, manifest.hash

        folder, manifest_hash = await asyncio.to_thread(write)
        await self._records.append(Version(version, folder.as_uri(), manifest_hash, self._chain))
        self._log.info("version_published", version=str(version))

    async def _save_if_new(self) -> None:
        if self._verified is None or self._verified.k != self._k:
            await self._save()

    async def _save(self) -> None:
        """A checkpoint, its record, then the purge of what the one before it no longer needs."""
        claim = self._claim
        manifest = CheckpointManifest(
            run_id=claim.run_id,
            k=self._k,
            lineage=claim.lineage,
            chain=self._chain,
            ledger_sequence=self._covered,
            config_hash=claim.config_hash,
            optimizer_updates=self._k,
            world_size=1,
        )

        def write() -> Checkpoint:
            folder = self._store.begin(self._k, claim.lineage)
            return self._store.commit(folder, manifest, self._since)

        record = await asyncio.to_thread(write)
        self._since = []
        await self._records.append(record)
        floors = self._floors.get(self._verified.k - 1) if self._verified else None
        if floors is not None:
            await purge(self._bus, claim.run_id, floors)
        self._verified = record
        self._floors = {k: floors for k, floors in self._floors.items() if k >= record.k - 1}
        self._kept = self._store.prune([*self._kept, record], claim.spec.checkpoint)
        self._log.info("checkpoint_stored", k=record.k)


async def serve(settings: TrainerSettings, seconds: Latency) -> None:
    """Train one run after the other, each to its end. Raises: as `SimulatedTrainer.follow`."""
    holder, log = instance_name("simulated-trainer"), get_logger("simulated-trainer")
    bus = await Bus.connect(settings.nats_url, holder, settings.nats_deadline_seconds)
    server = serve_metrics(settings.metrics_port, settings.metrics_host, lambda: bool(bus.nc.is_connected))
    sweeping = partial(sweep, bus, settings.weights_dir, settings.checkpoints_dir, log)
    try:
        while True:
            run_id, lease = await wait_for_run(bus, holder, settings.lease_seconds, sweeping)
            try:
                claim, records = await claim_run(bus, run_id, holder, log)
                log.info("run_claimed", run_id=run_id, lineage=claim.lineage, k=claim.k)
                await SimulatedTrainer(bus, claim, records, settings, seconds).follow()
            finally:
                await lease.release()
    finally:
        server.close()
        await bus.close()


def main() -> int:
    """The exit code: a trainer that ends has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--train", default="constant:1.0", help="seconds of a step: constant:S, lognormal:…, trace:FILE"
    )
    chosen = parser.parse_args()
    try:
        settings = TrainerSettings.from_environment(os.environ)
        seconds = parse_latency(chosen.train)
        configure_logging(settings.log_level)
        asyncio.run(serve(settings, seconds))
    except SluiceError as error:
        print(f"simulated-trainer: {error}", file=sys.stderr)
        return {ConfigError: EXIT_CONFIG, FencedError: EXIT_FENCED}.get(type(error), EXIT_FAILED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
