"""What the API knows about runs: the RunDirectory over LEDGER, TRAINER, GROUPS, EVENTS and the live status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from services.coordinator import forking
from services.coordinator.api.problems import ConflictError, MissingError
from services.coordinator.around import PATIENCE_SECONDS, Around
from services.coordinator.board import StatusBoard
from services.coordinator.config import CoordinatorConfig
from services.coordinator.control import ask
from services.coordinator.creation import RunCreator
from services.coordinator.deletion import check_deletable, delete_run, is_deleted, sweep
from services.coordinator.evaluation.reader import EvaluationReader
from services.coordinator.groups import GroupReader
from services.coordinator.history import RunHistory
from services.coordinator.prompt_source import SourceShelf
from services.coordinator.prompts import PromptReader
from services.coordinator.runs import RunReader
from services.coordinator.skipping import resume_without
from services.coordinator.status import LiveStatus, counts_of_ledger
from services.coordinator.truths import TruthCheck
from services.coordinator.workers import registered_workers
from sluice.config import RunSpec, changed
from sluice.errors import TransientError
from sluice.evaluation_views import RunEvaluationView
from sluice.group_views import GroupDetailView, GroupView
from sluice.prompt_views import PromptsView
from sluice.telemetry import get_logger
from sluice.transport.log import follow_stream, read_stream
from sluice.transport.nats import Bus
from sluice.types import RunState
from sluice.views import (
    CheckpointView,
    DeletionView,
    EventView,
    RunAction,
    RunView,
    StepView,
    TrainingView,
    VersionView,
    WorkerView,
)
from sluice.wire import subjects


class Directory:
    """Implements `services.coordinator.api.app.RunDirectory`; every replica gives the same answers."""

    def __init__(
        self,
        bus: Bus,
        runs: RunReader,
        board: StatusBoard,
        around: Around,
        truths: TruthCheck,
        config: CoordinatorConfig,
    ) -> None:
        self._bus, self._runs, self._board, self._around = bus, runs, board, around
        sources = SourceShelf()
        self._groups, self._prompts = GroupReader(bus, sources), PromptReader(bus, sources)
        self._evaluations, self._evaluations_dir = EvaluationReader(bus), config.evaluations_dir
        self._creator = RunCreator(bus, runs, truths, config.allow_remote_code)

    async def create(self, spec: RunSpec, idempotency_key: str | None, checkpoint: str | None = None) -> RunView:
        source = None if checkpoint is None else await self._creator.source_of_folder(Path(checkpoint))
        return await self._view(await self._creator.create(spec, idempotency_key, source), with_spec=True)

    async def fork(self, run_id: str, step: int | None, changes: dict[str, Any], key: str | None) -> RunView:
        history = await self._history(run_id)
        source = await forking.source_of_run(self._bus, history, forking.checkpoint_of(history, step))
        return await self._view(await self._creator.create(changed(history.spec, changes), key, source), with_spec=True)

    async def list(self) -> Sequence[RunView]:
        return [await self._view(history, with_spec=False) for history in await self._runs.all()]

    async def get(self, run_id: str) -> RunView:
        return await self._view(await self._as_far_as_read(run_id), with_spec=True)

    async def control(self, run_id: str, action: RunAction, reason: str, skip_batch: int | None = None) -> RunView:
        history = await self._history(run_id)
        if skip_batch is not None:
            await resume_without(self._bus, history, skip_batch, reason)
            return await self.get(run_id)
        conflict = (
            f"the run has {history.state}" if history.state.terminal else await self._ask(history, action, reason)
        )
        if conflict:
            raise ConflictError(conflict, field="state", value=str(history.state))
        return await self.get(run_id)

    async def _ask(self, history: RunHistory, action: RunAction, reason: str) -> str:
        try:
            return await ask(self._bus, history.run_id, action, reason)
        except TransientError:
            if history.problem:
                return f"no coordinator holds the run: {history.problem}"
            raise

    async def delete(self, run_id: str, keep_checkpoints: bool) -> DeletionView:
        history = await self._runs.get(run_id)
        if history is None and not await is_deleted(self._bus, run_id):
            raise missing(run_id)
        if history is not None:
            await check_deletable(self._runs, history, keep_checkpoints)
        deleted = await delete_run(self._bus, run_id, keep_checkpoints)
        await sweep(self._bus, self._evaluations_dir, get_logger("coordinator"))
        return deleted

    async def steps(self, run_id: str, after: int, limit: int) -> Sequence[StepView]:
        history = await self._history(run_id)
        batches = [batch for batch in history.batches if batch.step > after][:limit]
        trainings = await self._trainings(run_id)
        return [StepView(step=b.step, batch=b, training=trainings.get(b.step)) for b in batches]

    async def groups(self, run_id: str, after: int, limit: int) -> Sequence[GroupView]:
        return await self._groups.list(await self._history(run_id), after, limit)

    async def group(self, run_id: str, n: int) -> GroupDetailView:
        history = await self._history(run_id)
        if not 0 <= n < history.next_n:
            raise MissingError(
                f"run {run_id} has no group {n}; {history.next_n} were issued", field="n", value=n, limit=history.next_n
            )
        return await self._groups.detail(history, n)

    async def prompts(self, run_id: str, after: int, limit: int) -> PromptsView:
        return await self._prompts.read(await self._history(run_id), after, limit)

    async def events(self, run_id: str, last_event_id: int) -> AsyncIterator[EventView]:
        history = await self._history(run_id)
        start = last_event_id + 1
        over = history.state.terminal
        source = (read_stream if over else follow_stream)(self._bus, subjects.EVENTS, subjects.events(run_id), start)
        async for sequence, payload, at in source:
            event = _event(sequence, payload, at)
            yield event
            if event.kind == "state" and RunState(event.fields["state"]).terminal:
                return

    async def versions(self, run_id: str) -> Sequence[VersionView]:
        return (await self._history(run_id)).versions

    async def checkpoints(self, run_id: str) -> Sequence[CheckpointView]:
        return (await self._history(run_id)).checkpoints

    async def evaluations(self, run_id: str) -> Sequence[RunEvaluationView]:
        return await self._evaluations.list(await self._history(run_id))

    async def workers(self) -> Sequence[WorkerView]:
        return await registered_workers(self._bus)

    async def healthy(self) -> bool:
        return not self._bus.nc.is_closed

    async def ready(self) -> str:
        return "" if self._bus.nc.is_connected else "NATS (knob: SLUICE_NATS_URL)"

    # ---------------------------------------------------------------- helpers of the routes above

    async def _history(self, run_id: str) -> RunHistory:
        """As it stands now. Raises: ConflictError: not even its first record can be read."""
        history = await self._as_far_as_read(run_id)
        if not history.has_spec:
            raise ConflictError(f"run {run_id} cannot be read by this coordinator: {history.problem}", field="run_id")
        return history

    async def _as_far_as_read(self, run_id: str) -> RunHistory:
        """As it stands now; as it was read last, if NATS does not answer."""
        known = self._runs.known(run_id)
        patience = None if known is None else 0 if self._around.nats_is_away else PATIENCE_SECONDS
        try:
            async with asyncio.timeout(patience):
                history = await self._runs.get(run_id)
        except TimeoutError:
            if known is None:
                raise
            history = known
        if history is None:
            raise missing(run_id)
        return history

    async def _view(self, history: RunHistory, with_spec: bool) -> RunView:
        live = None if history.state.terminal else await self._board.read(history.run_id)
        missed = self._around.waits(history, live)
        live = live or LiveStatus(counts=counts_of_ledger(history))
        spec = history.spec if history.has_spec else None
        return RunView(
            id=history.run_id,
            name=spec.name if spec else history.run_id,
            state=history.state,
            reason=f"as far as it can be read; {history.problem}" if history.problem else history.reason,
            problem=history.problem,
            config_hash=history.config_hash if spec else "",
            created_at=history.created_at,
            first_issue_at=history.first_issue_at,
            finished_at=history.finished_at,
            training_steps=history.training_steps,
            batches=history.end_step,
            forked_from=forking.view_of(history.origin),
            forks=tuple(await self._runs.forks_of(history.run_id))
            if with_spec and not self._around.nats_is_away
            else (),
            total_steps=spec.trainer.total_steps if spec else 0,
            policy_version=history.versions[-1].version if history.versions else None,
            counts=live.counts,
            waits=(*missed, *live.waits),
            bottleneck=live.bottleneck,
            spec=spec.model_dump(mode="json") if with_spec and spec else None,
            data=history.data_manifest if with_spec else None,
        )

    async def _trainings(self, run_id: str) -> dict[int, TrainingView]:
        """Step events by step; a replayed step replaces its metrics."""
        source = read_stream(self._bus, subjects.EVENTS, subjects.event(run_id, "step"))
        fields = [json.loads(payload) async for _, payload, _ in source]
        return {view.step: view for view in map(TrainingView.model_validate, fields)}


def missing(run_id: str) -> MissingError:
    return MissingError(f"there is no run {run_id!r}; GET /v1/runs lists them", field="run_id", value=run_id)


def _event(sequence: int, payload: bytes, at: datetime) -> EventView:
    fields = json.loads(payload)
    fields.pop("run_id", None)
    return EventView(id=sequence, kind=fields.pop("kind"), time=at, fields=fields)
