"""`sluice runs`, `pause`, `resume` and `stop`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from sluice.cli.connection import At, RunId, connect, wait_for
from sluice.cli.progress import first_line
from sluice.errors import WaitTimeoutError
from sluice.views import RunAction, RunView

POLL_SECONDS = 0.5
UNBROKEN_COLUMNS = 1000
LEAST_REASON = 12
"""Characters of a reason that a terminal shows, however narrow it is."""

Reason = Annotated[str, typer.Option("--reason", help="Why, in words; the run's status shows it.")]
Wait = Annotated[float, typer.Option("--wait-seconds", min=0, help="Wait so long for the checkpoint; 0 does not wait.")]
SkipBatch = Annotated[
    int | None,
    typer.Option(min=0, help="Go on with a run that has failed on this batch, without it.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")]


def runs(at: At = None, json: Json = False) -> None:
    """List the runs, newest first."""

    async def fetch() -> tuple[RunView, ...]:
        async with connect(at) as client:
            return await client.runs()

    found = wait_for(fetch())
    if json:
        for run in found:
            print(run.model_dump_json())
    elif not found:
        print("no runs yet; submit one with `sluice run RUN_FILE`")
    else:
        # Who reads it through a pipe gets a run a line, however long a reason is; a terminal as much as fits.
        console = Console(width=None if sys.stdout.isatty() else UNBROKEN_COLUMNS)
        taken = Measurement.get(console, console.options.update(max_width=UNBROKEN_COLUMNS), _table(found, 0)).maximum
        console.print(_table(found, max(console.width - taken, LEAST_REASON)))


def pause(run: RunId, at: At = None, reason: Reason = "", wait_seconds: Wait = 0.0) -> None:
    """Pause a run: nothing new is issued, the training step at hand is finished and checkpointed."""
    _control(run, RunAction.PAUSE, reason, at)
    if wait_seconds:
        wait_for(_wait_until_saved(run, at, wait_seconds))


def resume(run: RunId, at: At = None, reason: Reason = "", skip_batch: SkipBatch = None) -> None:
    """Go on with a paused run; or, with --skip-batch, with one that has failed in training, without that batch."""
    _control(run, RunAction.RESUME, reason, at, skip_batch)


def stop(run: RunId, at: At = None, reason: Reason = "") -> None:
    """End a run: what is in flight is cancelled, the last training step is checkpointed."""
    _control(run, RunAction.STOP, reason, at)


def _control(run_id: str, action: RunAction, reason: str, at: str | None, skip_batch: int | None = None) -> None:
    async def send() -> RunView:
        async with connect(at) as client:
            return await client.control(run_id, action, reason, skip_batch)

    run = wait_for(send())
    print(f"{run.id}: {run.state}" + (f" ({run.reason})" if run.reason else ""))


async def _wait_until_saved(run_id: str, at: str | None, seconds: float) -> None:
    """Return once a checkpoint covers every batch. Raises: WaitTimeoutError: none does in time."""
    try:
        async with asyncio.timeout(seconds), connect(at) as client:
            while True:
                run, saved = await client.get(run_id), await client.checkpoints(run_id)
                if run.state.terminal or run.batches == max((checkpoint.k for checkpoint in saved), default=0):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise WaitTimeoutError("checkpoint", seconds, "--wait-seconds") from None


def _table(found: tuple[RunView, ...], most: int) -> Table:
    """One row a run; of its reason's first line at most `most` characters."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True, overflow="ignore")  # an id cut short cannot be copied
    for title in ("state", "steps", "version", "keep rate", "created", "reason"[:most]):
        table.add_column(title, no_wrap=True)
    for run in found:
        keep, reason = run.counts.keep_rate, first_line(run.reason)
        table.add_row(
            run.id,
            run.state,
            f"{run.training_steps}/{run.total_steps}",
            run.policy_version or "-",
            "-" if keep is None else f"{keep:.2f}",
            f"{run.created_at:%Y-%m-%d %H:%M}",
            reason if len(reason) <= most else f"{reason[: max(most - 2, 0)]} …"[:most],
        )
    return table
