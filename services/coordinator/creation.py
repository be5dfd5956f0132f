"""How a run comes to be: checked for all that only the deployment can know, then stored as its first LEDGER record."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

from services.coordinator import forking
from services.coordinator.announcing import announce
from services.coordinator.api.problems import ConflictError
from services.coordinator.deletion import is_deleted
from services.coordinator.evaluation.sets import load_sets
from services.coordinator.history import RunHistory
from services.coordinator.rules import batch_room, rollouts_room
from services.coordinator.runs import RunReader
from services.coordinator.truths import TRUTHS, TruthCheck
from sluice.config import RunSpec
from sluice.data import check_model, load_prompts, manifest_of
from sluice.errors import ConfigError, FencedError, TransientError
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.types import RunCreated
from sluice.wire import subjects
from sluice.wire.checkpoint import record_of
from sluice.wire.room import check_message_room


class RunCreator:
    """Creates runs, from their model or from a checkpoint."""

    def __init__(self, bus: Bus, runs: RunReader, truths: TruthCheck, allow_remote_code: bool) -> None:
        self._bus, self._runs = bus, runs
        self._truths, self._allow_remote_code = truths, allow_remote_code

    async def create(
        self, spec: RunSpec, idempotency_key: str | None, source: forking.Source | None = None
    ) -> RunHistory:
        """Check what only the deployment can, then store RUN_CREATED as the run's first LEDGER record.

        Args:
            source: the checkpoint that it starts from; None: from its model.

        Raises:
            ConfigError, InvalidError: a file or value is wrong, or does not go with the checkpoint.
            ConflictError: the key created another run.
        """
        if source is not None:
            forking.check_fork(spec, source.history.spec, source.checkpoint.k)
        manifest = await self._check(spec)
        origin = None if source is None else forking.origin_of(source, spec, manifest)
        run_id = f"{spec.name}-{_suffix(idempotency_key)}"
        if await is_deleted(self._bus, run_id):
            raise ConflictError(
                f"this Idempotency-Key created run {run_id}, which was deleted; give another key",
                field="Idempotency-Key",
                value=run_id,
            )
        log = ledger_log(self._bus, run_id)
        record = RunCreated(run_id, spec.canonical_json, spec.config_hash, json.dumps(manifest), origin)
        try:
            await log.append(record)
        except FencedError:
            return await self._created_before(run_id, record)
        history = await self._stored(run_id)
        await announce(self._bus, history)
        return history

    async def source_of_folder(self, folder: Path) -> forking.Source:
        """By its run's records where this server has them, else by what is in the folder."""
        run_id, checkpoint = await asyncio.to_thread(record_of, folder)
        history = await self._runs.get(run_id)
        if history is None or not history.has_spec:
            return await asyncio.to_thread(forking.source_of_folder, folder)
        return await forking.source_of_run(self._bus, history, checkpoint)

    async def _check(self, spec: RunSpec) -> dict[str, Any]:
        """What the run would train on.

        Raises:
            ConfigError: a file is missing or wrong, a ground truth cannot be judged by, or the deployment does not
                allow the model's code.
            TransientError: the reward service does not answer.
        """
        if spec.model.trust_remote_code and not self._allow_remote_code:
            raise ConfigError(
                "model.trust_remote_code = true: this deployment does not run code from checkpoints; "
                "knob: SLUICE_ALLOW_REMOTE_CODE on the coordinator and the trainer"
            )
        await self._check_room(spec)
        await asyncio.to_thread(check_model, spec)
        table = await asyncio.to_thread(load_prompts, spec)
        if spec.data.total_epochs and len(table) * spec.data.total_epochs < spec.trainer.prompts_per_step:
            raise ConfigError(
                f"data.total_epochs = {spec.data.total_epochs} over {len(table)} prompts gives fewer groups than "
                f"trainer.prompts_per_step = {spec.trainer.prompts_per_step}"
            )
        sets = await load_sets(spec, {})
        earlier = [history.data_manifest for history in await self._runs.all()]
        manifest = await asyncio.to_thread(manifest_of, spec, table)
        manifest[TRUTHS] = await self._truths.facts(spec, table, earlier)
        return manifest | ({"evaluation": {chosen.name: chosen.facts for chosen in sets}} if sets else {})

    async def _check_room(self, spec: RunSpec) -> None:
        room = (await self._bus.js.stream_info(subjects.ROLLOUTS)).config.max_bytes or 0
        needed = rollouts_room(spec)
        if 0 < room < needed:
            raise ConfigError(
                f"the ROLLOUTS stream holds {room} bytes; the staleness, checkpoint interval and batch of this run "
                f"need up to {needed}; shorten checkpoint.interval = {spec.checkpoint.interval}, or raise "
                f"SLUICE_ROLLOUTS_BYTES"
            )
        largest, batch = self._bus.nc.max_payload, batch_room(spec)
        if batch > largest:
            raise ConfigError(
                f"a batch of trainer.prompts_per_step = {spec.trainer.prompts_per_step} groups of "
                f"rollout.group_size = {spec.rollout.group_size} is one record of up to {batch} bytes; the NATS server "
                f"takes messages of {largest}: lower one of the two, or raise the server's max_payload"
            )
        check_message_room(spec, largest)

    async def _created_before(self, run_id: str, record: RunCreated) -> RunHistory:
        history = await self._stored(run_id)
        if history.config_hash != record.config_hash:
            raise ConflictError(
                f"this Idempotency-Key created run {run_id} with config hash {history.config_hash}, "
                f"not {record.config_hash}",
                field="Idempotency-Key",
                value=run_id,
            )
        if history.first_step != record.first_step or bool(history.origin) != bool(record.origin):
            raise ConflictError(
                f"this Idempotency-Key created run {run_id}, which starts from training step {history.first_step}, "
                f"not from {record.first_step}",
                field="Idempotency-Key",
                value=run_id,
            )
        return history

    async def _stored(self, run_id: str) -> RunHistory:
        """A run that is there. Raises: TransientError: it was deleted in this instant."""
        history = await self._runs.get(run_id)
        if history is not None and not history.has_spec:
            raise ConflictError(f"run {run_id} cannot be read by this coordinator: {history.problem}")
        if history is None:
            raise TransientError(f"run {run_id} was deleted as it was created; create it again")
        return history


def _suffix(idempotency_key: str | None) -> str:
    """Random without a key; with one, a function of it, so that the same key names the same run."""
    if idempotency_key is None:
        return secrets.token_hex(4)
    return hashlib.blake2b(idempotency_key.encode(), digest_size=8).hexdigest()
