"""`sluice track`: a run's training steps in JSONL, TensorBoard or Weights & Biases, while it runs and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from sluice.cancellation import cancelled_by_sigterm
from sluice.cli.connection import At, connect, newest_run, wait_for
from sluice.client import RECONNECT_SECONDS, NoServerError, RunsClient
from sluice.errors import ConfigError, TransientError
from sluice.telemetry import configure_logging, get_logger
from sluice.tracking.follow import Follower, failed
from sluice.tracking.target import Opener, Subject
from sluice.tracking.targets import FORMS, open_all, parse_target
from sluice.views import RunView

POLL_SECONDS = 2.0
EVENTS_ARE_KEPT = timedelta(hours=24)
"""A run that ended before this has no events left, and is tracked only when it is named."""

TrackedRun = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="The run's id; default: the newest run.", show_default=False)
]
To = Annotated[
    list[str],
    typer.Option("--to", metavar="TARGET", envvar="SLUICE_TRACK_TO", help=f"{FORMS}; may be repeated."),
]
Name = Annotated[str | None, typer.Option("--name", help="What the trackers call the run; default: its id.")]
All = Annotated[bool, typer.Option("--all", help="Every run, also those to come; until Ctrl-C.")]
VerlNames = Annotated[bool, typer.Option("--verl-names", help="Write verl's names of the metrics beside ours.")]


def track(
    run: TrackedRun = None,
    to: To = [],  # noqa: B006  # typer reads the default, nobody changes it
    name: Name = None,
    every_run: All = False,
    verl_names: VerlNames = False,
    at: At = None,
) -> None:
    """Write a run's training steps to trackers until it ends; started again, it goes on where it was."""
    if not to:
        raise ConfigError(f"--to: say where to track the run: {FORMS}")
    if every_run and (run or name):
        raise ConfigError(f"--all tracks every run under its id: leave out {'RUN' if run else '--name'}")
    tracking = Tracking(tuple(parse_target(text, many=every_run) for text in to), name, verl_names)

    async def work() -> None:
        with cancelled_by_sigterm():
            async with connect(at) as client:
                if every_run:
                    await _track_all(client, tracking)
                else:
                    await _track(client, run or await newest_run(client), tracking, _print)

    wait_for(work())


@dataclass(frozen=True, slots=True)
class Tracking:
    """What the user chose, the same for every run."""

    openers: tuple[Opener, ...]
    name: str | None
    verl_names: bool


async def _track(client: RunsClient, run_id: str, tracking: Tracking, say: Callable[[str, str], None]) -> None:
    """Track one run to its end; `say` takes its id and what has become of it."""
    run, ended = await client.get(run_id), None
    targets = open_all(tracking.openers, Subject.of(run, tracking.name))
    try:
        for target in targets:
            say(run_id, f"to {target.place}, from step {target.last + 1}")
        ended = await Follower(client, run, targets, tracking.verl_names).follow()
        say(run_id, f"{ended.state} after {ended.training_steps} steps, and tracked")
    except asyncio.CancelledError:
        say(run_id, "goes on; the same `sluice track` goes on with it")
        raise
    finally:
        for target in targets:
            target.close(failed(ended))


def _print(run_id: str, text: str) -> None:
    print(f"{run_id}: {text}", flush=True)


async def _track_all(client: RunsClient, tracking: Tracking) -> None:
    """Track every run, each in a task of its own, as a service does: it says so in its log.

    Raises:
        ConfigError, TransientError: as the first task that does, or when the coordinator stays away.
    """
    configure_logging("info")
    log = get_logger("tracker")
    tasks: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            oldest = datetime.now(UTC) - EVENTS_ARE_KEPT
            for run in await _runs(client):
                if run.id not in tasks and (run.finished_at is None or run.finished_at > oldest):
                    work = _track(
                        client, run.id, tracking, lambda run_id, text: log.info("tracking", run=run_id, detail=text)
                    )
                    tasks[run.id] = asyncio.create_task(work)
            await asyncio.sleep(POLL_SECONDS)
            for task in tasks.values():
                if task.done():
                    task.result()
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _runs(client: RunsClient) -> tuple[RunView, ...]:
    """All runs, once the coordinator answers. Raises: TransientError, NoServerError: it stays away."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + RECONNECT_SECONDS
    while True:
        try:
            return await client.runs()
        except (TransientError, NoServerError):
            if clock() > deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)
