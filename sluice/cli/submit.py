"""`sluice run`: submit a run file, and watch the run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.connection import At, connect, wait_for
from sluice.cli.estimate import Architecture, estimate
from sluice.cli.resolve import arithmetic, resolve, to_toml
from sluice.cli.resuming import AUTO, DISABLED, create, told
from sluice.cli.watch import follow_to_end
from sluice.config import RunSpec
from sluice.errors import ConfigError
from sluice.local.run import check_model
from sluice.locations import HUB
from sluice.types import RunState

NOTICE_SECONDS = 3.0
"""After so long a person wonders."""

RunFile = Annotated[
    Path, typer.Argument(metavar="RUN_FILE", help="The run file, e.g. configs/tiny.toml.", show_default=False)
]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one field; may be repeated.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved run file and its arithmetic; submit nothing.")
]
Gpus = Annotated[int, typer.Option("--gpus", min=1, help="Dry run: GPUs of the trainer, for the estimate of memory.")]
ArchitectureFile = Annotated[
    Path | None,
    typer.Option("--architecture", help="Dry run: config.json of the model; default: that in model.path, if here."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Print the run's id and return, instead of watching it.")]
Key = Annotated[
    str | None, typer.Option("--idempotency-key", help="Submitting again with the same key creates no second run.")
]

Resume = Annotated[
    str,
    typer.Option(
        metavar="disabled|auto|RUN[@STEP]|FOLDER",
        help="Start from the model; where the newest run of this name is; or from this checkpoint.",
    ),
]


def run(  # noqa: PLR0913, PLR0917  # an option each: typer reads the signature
    file: RunFile,
    overrides: Overrides = [],  # noqa: B006  # typer reads the default, nobody changes it
    dry_run: DryRun = False,
    gpus: Gpus = 8,
    architecture: ArchitectureFile = None,
    detach: Detach = False,
    idempotency_key: Key = None,
    resume: Resume = DISABLED,
    at: At = None,
) -> None:
    """Submit a run and watch it. Leaving (Ctrl-C) does not stop the run."""
    spec = resolve(file, overrides)
    if dry_run:
        show(spec, gpus, architecture)
    else:
        raise typer.Exit(wait_for(submit(spec, at, idempotency_key, detach, resume)))


async def submit(spec: RunSpec, at: str | None, key: str | None, detach: bool, resume: str = DISABLED) -> int:
    """Create the run and, unless `detach`, follow it to its end; the exit code.

    A run that `--resume auto` finds finished needs neither.
    """
    async with connect(at) as client:
        if at is None:
            print(f"the only stack here has its API at {client.url}", file=sys.stderr, flush=True)
        with _saying_what_takes_long():
            run = await create(client, spec, key, resume)
        print(told(run), flush=True)
        if detach or (resume == AUTO and run.state is RunState.SUCCEEDED):
            return 0
        return await follow_to_end(client, run.id, spec.trainer.total_steps)


@contextmanager
def _saying_what_takes_long() -> Iterator[None]:
    """Until a run is created there is no status that could show it."""
    what = "the coordinator is loading the data and checking its ground truths; large files take a minute"
    notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, lambda: print(what, file=sys.stderr, flush=True))
    try:
        yield
    finally:
        notice.cancel()


def show(spec: RunSpec, gpus: int, architecture: Path | None) -> None:
    """The dry run: on standard output a run file that gives exactly this spec, on standard error what it means."""
    print(to_toml(spec), end="")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for what, how_much in arithmetic(spec) + _demands(spec, gpus, architecture):
        console.print(f"[bold]{what:>22}[/]  {how_much}")
    for note in _missing(spec):
        console.print(f"[yellow]{'not here yet':>22}[/]  {note}")


def _demands(spec: RunSpec, gpus: int, architecture: Path | None) -> list[tuple[str, str]]:
    """Memory and traffic, as far as the model's architecture is known here."""
    file = architecture or Path(spec.model.path) / "config.json"
    if architecture is None and not file.is_file():
        return [("memory and traffic", "unknown without the model; name its config.json with --architecture")]
    return estimate(spec, Architecture.read(file), gpus)


def _missing(spec: RunSpec) -> list[str]:
    """Files that the spec names and this folder lacks: a fault when the run starts, not in a dry run."""
    named = [("data.train_files", file) for file in spec.data.train_files]
    named += [(f"evaluation.sets, {entry.name}", file) for entry in spec.evaluation.sets for file in entry.files]
    notes = [f"{field}: {file}" for field, file in named if not Path(file).exists()]
    if spec.model.path.startswith(HUB):
        return [*notes, f"model.path: {spec.model.path}"]
    try:
        check_model(Path(spec.model.path))
    except ConfigError as error:
        notes.append(str(error))
    return notes
