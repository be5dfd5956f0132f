"""An API server for tests: real HTTP in front of runs that are kept in memory and moved on by the test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import uvicorn

from services.coordinator.api.app import create_app
from services.coordinator.api.problems import ConflictError, MissingError
from services.coordinator.directory import missing
from sluice.config import RunSpec, changed, parse_run_spec
from sluice.errors import ConfigError, TransientError
from sluice.evaluation_views import RunEvaluationView
from sluice.group_views import GroupDetailView, GroupView
from sluice.prompt_views import PromptsView
from sluice.types import RunState
from sluice.views import (
    BatchView,
    CheckpointView,
    DeletionView,
    EventView,
    OriginView,
    RunAction,
    RunView,
    StepView,
    TrainingView,
    VersionView,
    WorkerView,
)
from tests.servers import free_port

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class RunShelf:
    """Implements `services.coordinator.api.app.RunDirectory`. The test sets fields and calls `emit`."""

    def __init__(self) -> None:
        self.runs: dict[str, RunView] = {}
        self.keys: dict[str, str] = {}
        self.events_of: dict[str, list[EventView]] = {}
        self.news = asyncio.Condition()
        self.waits_for = ""
        self.works = True
        self.deleted: set[str] = set()
        self.evaluated = [
            RunEvaluationView(number=0, version="v0.1", state="skipped", reason="the set is gone", ended_at=NOW)
        ]
        """What every run has of evaluations."""
        self.away = False
        self.controls: list[tuple[str, RunAction, str]] = []

    async def create(self, spec: RunSpec, idempotency_key: str | None, checkpoint: str | None = None) -> RunView:
        if checkpoint is not None and "checkpoints" not in checkpoint:
            raise ConfigError(f"{checkpoint} is no checkpoint")
        if spec.model.path == "nowhere":
            raise ConfigError("model.path = nowhere: there is no such folder")
        if idempotency_key in self.keys:
            run = self.runs[self.keys[idempotency_key]]
            if run.config_hash != spec.config_hash:
                raise ConflictError("the key was used for another spec", field="Idempotency-Key", value=idempotency_key)
            return run
        run = RunView(
            id=f"{spec.name}-{len(self.runs)}",
            name=spec.name,
            state=RunState.QUEUED,
            config_hash=spec.config_hash,
            created_at=NOW,
            total_steps=spec.trainer.total_steps,
            spec=spec.model_dump(mode="json"),
        )
        self.runs[run.id] = run
        self.events_of[run.id] = []
        if idempotency_key:
            self.keys[idempotency_key] = run.id
        return run

    async def fork(self, run_id: str, step: int | None, changes: dict[str, Any], key: str | None) -> RunView:
        run = await self.get(run_id)
        if step not in (None, 5):
            raise ConflictError(f"run {run_id} has no checkpoint of step {step}", field="step", value=step)
        fork = await self.create(changed(parse_run_spec(run.spec or {}), changes), key)
        return self.change(fork.id, forked_from=OriginView(run=run_id, step=5, checkpoint="/c/5.1"))

    async def list(self) -> Sequence[RunView]:
        return [run.model_copy(update={"spec": None}) for run in reversed(self.runs.values())]

    async def get(self, run_id: str) -> RunView:
        if self.away:
            raise TransientError("NATS did not answer within 60 s; knob: SLUICE_NATS_DEADLINE_SECONDS")
        if run_id not in self.runs:
            raise missing(run_id)
        return self.runs[run_id]

    async def control(self, run_id: str, action: RunAction, reason: str, skip_batch: int | None = None) -> RunView:
        run = await self.get(run_id)
        if run.state.terminal and (run.state is not RunState.FAILED or skip_batch is None):
            raise ConflictError(f"the run has {run.state}", field="state", value=run.state)
        states = {
            RunAction.PAUSE: RunState.PAUSED,
            RunAction.RESUME: RunState.RUNNING,
            RunAction.STOP: RunState.STOPPED,
        }
        self.controls.append((run_id, action, reason))
        return self.change(run_id, state=states[action], reason=reason)

    async def delete(self, run_id: str, keep_checkpoints: bool) -> DeletionView:
        if run_id not in self.deleted:
            run = await self.get(run_id)
            if not run.state.terminal:
                raise ConflictError(f"the run is {run.state}", field="state", value=run.state)
            del self.runs[run_id]
            self.deleted.add(run_id)
        return DeletionView(id=run_id, keep_checkpoints=keep_checkpoints)

    async def steps(self, run_id: str, after: int, limit: int) -> Sequence[StepView]:
        await self.get(run_id)
        kinds = {kind: [e for e in self.events_of[run_id] if e.kind == kind] for kind in ("batch", "step")}
        trainings = {e.fields["step"]: TrainingView.model_validate(e.fields) for e in kinds["step"]}
        batches = [BatchView.model_validate(e.fields) for e in kinds["batch"]]
        views = [StepView(step=b.step, batch=b, training=trainings.get(b.step)) for b in batches if b.step > after]
        return views[:limit]

    async def groups(self, run_id: str, after: int, limit: int) -> Sequence[GroupView]:
        await self.get(run_id)
        return [GroupView(n=n, state="in_flight", version=0) for n in range(after + 1, 5)][:limit]

    async def prompts(self, run_id: str, after: int, limit: int) -> PromptsView:
        await self.get(run_id)
        return PromptsView(rows=5, seen=0, draws=0, skipped=0, by_lot={}, keep_rates=(), prompts=())

    async def group(self, run_id: str, n: int) -> GroupDetailView:
        await self.get(run_id)
        if n >= 5:
            raise MissingError(f"group {n} was never issued; 5 were", field="n", value=n, limit=4)
        return GroupDetailView(n=n, state="in_flight", version=0)

    async def events(self, run_id: str, last_event_id: int) -> AsyncIterator[EventView]:
        while True:
            for event in self.events_of[run_id][last_event_id:]:
                last_event_id = event.id
                yield event
            if self.runs[run_id].state.terminal:
                return
            async with self.news:
                if len(self.events_of[run_id]) == last_event_id:
                    await self.news.wait()

    async def versions(self, run_id: str) -> Sequence[VersionView]:
        await self.get(run_id)
        return [VersionView(version="v0.1", uri="file:///w", manifest_hash="h", chain="c", published_at=NOW)]

    async def checkpoints(self, run_id: str) -> Sequence[CheckpointView]:
        await self.get(run_id)
        return [CheckpointView(k=5, lineage=1, path="/c/5.1", checksum="s", chain="c", stored_at=NOW)]

    async def evaluations(self, run_id: str) -> Sequence[RunEvaluationView]:
        await self.get(run_id)
        return self.evaluated

    async def workers(self) -> Sequence[WorkerView]:
        return [WorkerView(name="rollout-0", run="tiny-0", version="v0.1")]

    async def healthy(self) -> bool:
        return self.works

    async def ready(self) -> str:
        return self.waits_for

    def change(self, run_id: str, **fields: object) -> RunView:
        """The run with other fields from now on."""
        self.runs[run_id] = self.runs[run_id].model_copy(update=fields)
        return self.runs[run_id]

    async def emit(self, run_id: str, kind: str, **fields: object) -> None:
        """One more event of the run."""
        events = self.events_of[run_id]
        events.append(EventView(id=len(events) + 1, kind=kind, time=NOW, fields=fields))
        async with self.news:
            self.news.notify_all()


@contextlib.asynccontextmanager
async def serving(shelf: RunShelf, token: str | None = None, port: int | None = None) -> AsyncIterator[str]:
    """The API of `shelf` under a real server on a free port; its address."""
    port = port or free_port()
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(shelf, token), port=port, lifespan="off", log_level="warning", timeout_graceful_shutdown=1
        )
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class ThreadServer:
    """The API in a thread of its own, for callers that block."""

    def __init__(self, shelf: RunShelf, token: str | None = None, port: int | None = None) -> None:
        self.shelf, self.url = shelf, ""
        self._token, self._port = token, port
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def __enter__(self) -> ThreadServer:
        self.shelf.news = asyncio.Condition()  # the loop of a server before is gone
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)
        self._loop.close()

    def do(self, work: Coroutine[None, None, None]) -> None:
        """Let the server's thread do `work` on its shelf, now."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _serve(self) -> None:
        async with serving(self.shelf, self._token, self._port) as self.url:
            self._ready.set()
            await self._end.wait()
        await asyncio.sleep(0.1)  # open connections are closed by the loop, as a process that ends closes them
