"""`sluice delete`: a run that has ended, with everything that it left."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.connection import At, RunId, connect, wait_for
from sluice.views import DeletionView

KeepCheckpoints = Annotated[
    bool,
    typer.Option("--keep-checkpoints", help="Leave its checkpoints where they are; a new run can start from them."),
]


def delete(run: RunId, keep_checkpoints: KeepCheckpoints = False, at: At = None) -> None:
    """Delete a run that has ended: records, rollouts, events, evaluations, weights, checkpoints. No way back."""

    async def work() -> DeletionView:
        async with connect(at) as client:
            return await client.delete(run, keep_checkpoints)

    deleted = wait_for(work())
    folders = "weights" if deleted.keep_checkpoints else "weights and checkpoints"
    kept = "; its checkpoints stay" if deleted.keep_checkpoints else ""
    print(f"{deleted.id}: deleted; the trainer removes its {folders} when it next waits for a run{kept}")
