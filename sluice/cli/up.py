"""`sluice up`: all services on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.connection import wait_for
from sluice.cli.resolve import resolve
from sluice.config import RunSpec
from sluice.local.run import RunningStack, running_stack
from sluice.local.stack import StackOptions
from sluice.local.state import ARTIFACTS
from sluice.local.supervisor import Change, Notice
from sluice.locations import model_folder
from sluice.secrets import read_secret
from sluice.tracking.targets import FORMS, parse_target

RunFile = Annotated[
    Path, typer.Argument(metavar="RUN_FILE", help="A run file: its model is what the engines load.", show_default=False)
]
Name = Annotated[str, typer.Option("--name", help="Name of the stack: its folder is artifacts/NAME.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Rollout workers, each with an engine of its own.")]
Ranks = Annotated[int, typer.Option("--trainer-ranks", min=1, help="Processes of the trainer.")]
Rewards = Annotated[int, typer.Option("--reward-servers", min=1, help="Replicas of the reward service.")]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one field of the run file; may be repeated."),
]
TrackTo = Annotated[
    list[str],
    typer.Option("--track-to", metavar="TARGET", help=f"Track every run there: {FORMS}; may be repeated."),
]
Port = Annotated[
    int | None, typer.Option("--api-port", min=1, max=65535, help="Port of the REST API; default: a free one.")
]


def up(  # noqa: PLR0913, PLR0917  # one parameter for each flag
    file: RunFile,
    name: Name = "local",
    workers: Workers = 1,
    trainer_ranks: Ranks = 1,
    reward_servers: Rewards = 2,
    api_port: Port = None,
    track_to: TrackTo = [],  # noqa: B006  # typer reads the default, nobody changes it
    overrides: Overrides = [],  # noqa: B006  # typer reads the default, nobody changes it
) -> None:
    """Start all services on this machine and keep them alive; Ctrl-C ends them. Runs go on at the next start."""
    spec = resolve(file, overrides)
    options = stack_options(
        spec,
        ARTIFACTS / name,
        track_to,
        rollout_workers=workers,
        trainer_ranks=trainer_ranks,
        reward_servers=reward_servers,
        ports={"api": api_port} if api_port else {},
    )
    wait_for(_serve(name, options, file))


def stack_options(spec: RunSpec, folder: Path, track_to: Sequence[str] = (), **chosen: object) -> StackOptions:
    """The options of a stack in `folder` whose engines load the model of `spec`, and whose runs are tracked.

    Raises:
        ConfigError: a target is none, or its library is not installed.
    """
    for target in track_to:
        parse_target(target, many=True)
    return StackOptions(
        data=folder / "data",
        model=model_folder(spec.model.path),
        engine_dtype=spec.model.engine_dtype,
        token=read_secret("SLUICE_API_TOKEN", os.environ),
        track_to=tuple(track_to),
        **chosen,  # type: ignore[arg-type]  # the callers' keywords are typed options of commands
    )


def reporter() -> Callable[[Notice], None]:
    """Prints one line a change, with the seconds since the start, to standard error."""
    start = time.monotonic()

    def report(notice: Notice) -> None:
        if notice.change in (Change.HEALTHY, Change.ENDED):
            detail = f": {notice.detail}" if notice.detail else ""
            print(
                f"{time.monotonic() - start:7.1f} s  {notice.service} {notice.change}{detail}",
                file=sys.stderr,
                flush=True,
            )

    return report


async def _serve(name: str, options: StackOptions, file: Path) -> None:
    async with running_stack(name, options, reporter()) as running:
        _greet(running, file)
        await running.supervisor.during(asyncio.Event().wait())


def _greet(running: RunningStack, file: Path) -> None:
    print(f"API   {running.stack.api_url}  (documentation at /docs)")
    print(f"logs  {running.folder / 'logs'}")
    print(f"next  sluice run {file} --at {running.folder.name}", flush=True)
