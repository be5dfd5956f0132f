"""The runs REST API: HTTP in front of a RunDirectory, which knows the runs.

Nothing here keeps state. Every fault leaves as an RFC 9457 problem document (`problems.py`), every answer is one of
`sluice.views`, and OpenAPI at /openapi.json lists them all.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Depends, FastAPI

from services.coordinator.api import meta, problems, routes
from services.coordinator.api.access import TokenCheck
from services.coordinator.api.body import add_run_spec_schema
from services.coordinator.api.parting import PartingWords
from sluice.config import RunSpec
from sluice.evaluation_views import RunEvaluationView
from sluice.group_views import GroupDetailView, GroupView
from sluice.prompt_views import PromptsView
from sluice.views import (
    CheckpointView,
    DeletionView,
    EventView,
    RunAction,
    RunView,
    StepView,
    VersionView,
    WorkerView,
)


class RunDirectory(Protocol):
    """What the API needs to know about runs.

    Every method that takes a run id raises `problems.MissingError` for an unknown one, and may raise
    `sluice.errors.TransientError` or `WaitTimeoutError`, which become 503.
    """

    async def create(self, spec: RunSpec, idempotency_key: str | None, checkpoint: str | None = None) -> RunView:
        """Store a new run as queued. The same key with the same spec gives the same run again.

        Args:
            checkpoint: folder of a checkpoint, of whatever run, that it starts from; None: from its model.

        Raises:
            ConfigError: a file or value that only the deployment can judge is wrong (422).
            ConflictError: the key was used for another spec.
        """
        ...

    async def fork(self, run_id: str, step: int | None, changes: dict[str, Any], key: str | None) -> RunView:
        """Store a new run as queued that starts from a checkpoint of another one.

        Args:
            step: of the checkpoint; None: the newest.
            changes: nested tables of a run file, put over the other run's spec.

        Raises:
            ConfigError: a change is wrong, or cannot be made to a checkpoint (422).
            ConflictError: the run has no checkpoint, or the key was used for another spec.
        """
        ...

    async def list(self) -> Sequence[RunView]:
        """All runs, newest first, without their specs."""
        ...

    async def get(self, run_id: str) -> RunView:
        """One run with its spec."""
        ...

    async def control(self, run_id: str, action: RunAction, reason: str, skip_batch: int | None = None) -> RunView:
        """Pause, resume or stop. Asking for the state a run is in (or on its way to) changes nothing.

        Args:
            skip_batch: resume a run that has failed in training, without this batch.

        Raises:
            ConflictError: the run's state forbids it; names the state.
        """
        ...

    async def delete(self, run_id: str, keep_checkpoints: bool) -> DeletionView:
        """Delete a run that has ended, for good. Of one that is deleted it answers the same again.

        Raises:
            ConflictError: it has not ended, or a run that was forked from it still needs its checkpoint.
        """
        ...

    async def steps(self, run_id: str, after: int, limit: int) -> Sequence[StepView]:
        """Training steps k > `after`, lowest first."""
        ...

    async def groups(self, run_id: str, after: int, limit: int) -> Sequence[GroupView]:
        """Groups n > `after`, lowest first."""
        ...

    async def group(self, run_id: str, n: int) -> GroupDetailView:
        """One group with its provenance. Raises: MissingError: n was never issued."""
        ...

    async def prompts(self, run_id: str, after: int, limit: int) -> PromptsView:
        """Counts of the run's prompts, and the history of rows > `after`, lowest first.

        Raises:
            ConfigError: the run's data set is not there, or has changed (422).
        """
        ...

    def events(self, run_id: str, last_event_id: int) -> AsyncIterator[EventView]:
        """Events with id > `last_event_id`, then what arrives; ends after the event of a terminal state."""
        ...

    async def versions(self, run_id: str) -> Sequence[VersionView]:
        """Published policy versions, oldest first."""
        ...

    async def checkpoints(self, run_id: str) -> Sequence[CheckpointView]:
        """Stored checkpoints, oldest first."""
        ...

    async def evaluations(self, run_id: str) -> Sequence[RunEvaluationView]:
        """Evaluations inside the run, in the order in which they began or were passed over."""
        ...

    async def workers(self) -> Sequence[WorkerView]:
        """Rollout workers that are there now."""
        ...

    async def healthy(self) -> bool:
        """The process does its work; false asks for a restart."""
        ...

    async def ready(self) -> str:
        """Empty when requests can be served; otherwise who it waits for."""
        ...


def create_app(runs: RunDirectory, token: str | None = None) -> FastAPI:
    """The application. With a `token`, every route under /v1 asks for it as a bearer token."""
    app = FastAPI(
        title="Sluice runs API",
        version=importlib.metadata.version("sluice"),
        description="Create, watch and steer DAPO training runs.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        redirect_slashes=False,  # a redirect is no documented answer; /v1/runs/ is simply not there
    )
    app.state.runs = runs
    problems.install(app)
    app.add_middleware(PartingWords)
    app.include_router(routes.router, dependencies=[Depends(TokenCheck(token))])
    app.include_router(meta.router)
    add_run_spec_schema(app)
    return app
