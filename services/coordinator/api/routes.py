"""Routes under /v1: runs and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from services.coordinator.api.body import RUN_SPEC_BODY, ControlBody, ForkBody, ResumeBody, read_run_spec
from services.coordinator.api.problems import responses
from sluice.config import RunSpec
from sluice.evaluation_views import RunEvaluationView
from sluice.group_views import GroupDetailView, GroupView
from sluice.prompt_views import PromptsView
from sluice.views import (
    CheckpointView,
    DeletionView,
    RunAction,
    RunView,
    StepView,
    VersionView,
    WorkerView,
)

if TYPE_CHECKING:
    from services.coordinator.api.app import RunDirectory

router = APIRouter(prefix="/v1", responses=responses(401, 503))

MAX_ISSUE_NUMBER = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""

RunId = Annotated[
    str, Path(max_length=80, pattern=r"^[a-z0-9][a-z0-9-]*$", description="The run's id, as its creation returned it.")
]
After = Annotated[int, Query(ge=-1, le=MAX_ISSUE_NUMBER, description="Only entries with a higher number.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries of one answer.")]
Control = Annotated[ControlBody | None, Body(description="Optional.")]
Resume = Annotated[ResumeBody | None, Body(description="Optional.")]
Fork = Annotated[ForkBody | None, Body(description="Optional: without it, the newest checkpoint and no change.")]
Folder = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=4096,
        description="Start from this checkpoint instead of the model: a folder on the coordinator's machine.",
    ),
]
KeepCheckpoints = Annotated[bool, Query(description="Leave its checkpoints where they are.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=200, pattern=r"^[\x21-\x7e]+$", description="Repeating a key with the same spec creates nothing."
    ),
]
LastEventId = Annotated[
    int, Header(ge=0, le=MAX_ISSUE_NUMBER, alias="Last-Event-ID", description="Go on after this event.")
]


def _runs(request: Request) -> Any:
    return request.app.state.runs


Runs = Annotated["RunDirectory", Depends(_runs)]
ONE_RUN = responses(404, 422)
STEER = responses(400, 404, 409, 422)


@router.post(
    "/runs", status_code=201, tags=["runs"], responses=responses(400, 409, 413, 422), openapi_extra=RUN_SPEC_BODY
)
async def create_run(
    runs: Runs,
    response: Response,
    spec: Annotated[RunSpec, Depends(read_run_spec)],
    idempotency_key: IdempotencyKey = None,
    checkpoint: Folder = None,
) -> RunView:
    """Create a run. It is queued until a trainer and a rollout worker have joined it."""
    run = await runs.create(spec, idempotency_key, checkpoint)
    response.headers["Location"] = f"/v1/runs/{run.id}"
    return run


@router.get("/runs", tags=["runs"])
async def list_runs(runs: Runs) -> list[RunView]:
    """All runs, newest first, without their specs."""
    return list(await runs.list())


@router.get("/runs/{run_id}", tags=["runs"], responses=ONE_RUN)
async def get_run(runs: Runs, run_id: RunId) -> RunView:
    """One run as it stands: state, progress, counts, and who waits for whom."""
    return await runs.get(run_id)


@router.post("/runs/{run_id}/pause", tags=["runs"], responses=STEER)
async def pause_run(runs: Runs, run_id: RunId, body: Control = None) -> RunView:
    """Issue and emit nothing more; the training step at hand ends with a checkpoint."""
    return await runs.control(run_id, RunAction.PAUSE, _reason(body))


@router.post("/runs/{run_id}/resume", tags=["runs"], responses=STEER)
async def resume_run(runs: Runs, run_id: RunId, body: Resume = None) -> RunView:
    """Go on with a paused run; or with one that has failed on a batch, without that batch."""
    return await runs.control(run_id, RunAction.RESUME, _reason(body), body.skip_batch if body else None)


@router.post("/runs/{run_id}/stop", tags=["runs"], responses=STEER)
async def stop_run(runs: Runs, run_id: RunId, body: Control = None) -> RunView:
    """End the run: what is in flight is cancelled, the last training step ends with a checkpoint."""
    return await runs.control(run_id, RunAction.STOP, _reason(body))


@router.post("/runs/{run_id}/fork", status_code=201, tags=["runs"], responses=STEER)
async def fork_run(
    runs: Runs, run_id: RunId, response: Response, body: Fork = None, idempotency_key: IdempotencyKey = None
) -> RunView:
    """Create a run that goes on from a checkpoint of this one, which may be in any state, with changes to its spec."""
    wanted = body or ForkBody()
    run = await runs.fork(run_id, wanted.step, wanted.changes, idempotency_key)
    response.headers["Location"] = f"/v1/runs/{run.id}"
    return run


@router.delete("/runs/{run_id}", tags=["runs"], responses=responses(404, 409, 422))
async def delete_run(runs: Runs, run_id: RunId, keep_checkpoints: KeepCheckpoints = False) -> DeletionView:
    """Delete a run that has ended: records, rollouts, evaluations, weights, checkpoints. Its id is not used again."""
    return await runs.delete(run_id, keep_checkpoints)


@router.get("/runs/{run_id}/steps", tags=["progress"], responses=ONE_RUN)
async def list_steps(runs: Runs, run_id: RunId, after: After = -1, limit: Limit = 100) -> list[StepView]:
    """Training steps with their metrics, lowest first."""
    return list(await runs.steps(run_id, after, limit))


@router.get("/runs/{run_id}/groups", tags=["progress"], responses=ONE_RUN)
async def list_groups(runs: Runs, run_id: RunId, after: After = -1, limit: Limit = 100) -> list[GroupView]:
    """Groups with what became of them, lowest issue number first."""
    return list(await runs.groups(run_id, after, limit))


@router.get("/runs/{run_id}/groups/{n}", tags=["progress"], responses=ONE_RUN)
async def get_group(
    runs: Runs, run_id: RunId, n: Annotated[int, Path(ge=0, le=MAX_ISSUE_NUMBER, description="Issue number.")]
) -> GroupDetailView:
    """One group with its provenance: prompt, text, verdicts, versions, reason."""
    return await runs.group(run_id, n)


@router.get("/runs/{run_id}/prompts", tags=["progress"], responses=ONE_RUN)
async def list_prompts(runs: Runs, run_id: RunId, after: After = -1, limit: Limit = 100) -> PromptsView:
    """What the run's prompts have shown so far: keep rates by data source and difficulty, and each prompt's history."""
    return await runs.prompts(run_id, after, limit)


@router.get("/runs/{run_id}/versions", tags=["progress"], responses=ONE_RUN)
async def list_versions(runs: Runs, run_id: RunId) -> list[VersionView]:
    """Published policy versions, oldest first."""
    return list(await runs.versions(run_id))


@router.get("/runs/{run_id}/checkpoints", tags=["progress"], responses=ONE_RUN)
async def list_checkpoints(runs: Runs, run_id: RunId) -> list[CheckpointView]:
    """Stored checkpoints, oldest first."""
    return list(await runs.checkpoints(run_id))


@router.get("/runs/{run_id}/evaluations", tags=["progress"], responses=ONE_RUN)
async def list_evaluations(runs: Runs, run_id: RunId) -> list[RunEvaluationView]:
    """Evaluations of the run's policy versions, in the order in which they began; the last one may be running."""
    return list(await runs.evaluations(run_id))


async def _existing_run(runs: Runs, run_id: RunId) -> RunView:
    """Before the stream begins: once it has, a 404 can no longer be said."""
    return await runs.get(run_id)


@router.get("/runs/{run_id}/events", tags=["progress"], responses=ONE_RUN, response_class=EventSourceResponse)
async def stream_events(
    runs: Runs,
    run: Annotated[RunView, Depends(_existing_run)],
    last_event_id: LastEventId = 0,
) -> AsyncIterator[ServerSentEvent]:
    """The run's events as they happen (server-sent events); ends with the run. `data` is an EventView."""
    async for event in runs.events(run.id, last_event_id):
        yield ServerSentEvent(raw_data=event.model_dump_json(), event=event.kind, id=str(event.id))


@router.get("/workers", tags=["workers"])
async def list_workers(runs: Runs) -> list[WorkerView]:
    """Rollout workers that are there now."""
    return list(await runs.workers())


def _reason(body: ControlBody | None) -> str:
    return body.reason if body else ""
