"""`sluice demo`: the whole of Sluice once, on this machine: model, services, a run, its audit, a summary and a plot."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.connection import wait_for
from sluice.cli.plot import plot_run
from sluice.cli.progress import dropped_text
from sluice.cli.resolve import resolve
from sluice.cli.summary import Audit, Summary, summarize
from sluice.cli.up import TrackTo, reporter, stack_options
from sluice.cli.watch import follow, view
from sluice.client import RunsClient
from sluice.config import RunSpec
from sluice.errors import ConfigError, SluiceError, WaitTimeoutError
from sluice.local.run import MODEL_MAKERS, RunningStack, check_model, running_stack
from sluice.local.stack import StackOptions
from sluice.local.state import ARTIFACTS
from sluice.types import RunState
from sluice.views import RunView, StepView

File = Annotated[Path, typer.Option("--config", help="The run file.")]
Name = Annotated[str, typer.Option("--name", help="Everything is written to artifacts/NAME.")]
NoEarlyStop = Annotated[bool, typer.Option("--no-early-stop", help="Train all steps, whatever reward is reached.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one field of the run.")
]
Deadline = Annotated[float, typer.Option("--deadline-seconds", min=1, help="Longest time for the run.")]


def demo(
    config: File = Path("configs/demo.toml"),
    name: Name = "demo",
    no_early_stop: NoEarlyStop = False,
    overrides: Overrides = [],  # noqa: B006  # typer reads the default, nobody changes it
    deadline_seconds: Deadline = 1800.0,
    track_to: TrackTo = [],  # noqa: B006  # typer reads the default, nobody changes it
) -> None:
    """Train the demo's model from nothing, and show that it learned and that no group was lost or trained twice."""
    spec = resolve(config, [*overrides, *(["trainer.target_reward=none"] if no_early_stop else [])])
    options = stack_options(spec, ARTIFACTS / name, track_to)
    make_model(Path(spec.model.path))
    raise typer.Exit(wait_for(_demo(spec, name, options, deadline_seconds)))


def make_model(path: Path) -> None:
    """Make a model that comes with Sluice, unless it is there.

    Raises:
        ConfigError: it is not there, and is none of ours.
    """
    maker = MODEL_MAKERS.get(path.name)
    if maker is None or (path / "config.json").is_file():
        check_model(path)
        return
    print(f"making {path} (once)", file=sys.stderr, flush=True)
    # A process of its own: it needs torch and half a gigabyte, which are gone again when it ends.
    module, *arguments = maker.format(path).split()[2:]
    if subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode:
        raise ConfigError(f"model.path = {path}: it could not be made; the lines above say why")


async def _demo(spec: RunSpec, name: str, options: StackOptions, deadline_seconds: float) -> int:
    async with running_stack(name, options, reporter(), fresh=True) as running:
        return await running.supervisor.during(_train(spec, running, deadline_seconds))


async def _train(spec: RunSpec, running: RunningStack, deadline_seconds: float) -> int:
    async with RunsClient(running.stack.api_url, running.stack.token) as client:
        run = await _run(client, spec, deadline_seconds)
        steps, versions = await client.steps(run.id), await client.versions(run.id)
    audit = await _audit(run.id, running.stack.nats_url)
    summary = summarize(run, steps, versions, audit)
    _write(summary, steps, run, running.folder)
    show(summary, run, running.folder)
    return 0 if run.state is RunState.SUCCEEDED and audit.clean else 1


async def _run(client: RunsClient, spec: RunSpec, deadline_seconds: float) -> RunView:
    run = await client.create(spec, uuid.uuid4().hex)
    try:
        async with asyncio.timeout(deadline_seconds):
            with view(spec.trainer.total_steps) as screen:
                return await follow(client, run.id, screen)
    except TimeoutError:
        raise WaitTimeoutError("demo_run", deadline_seconds, "--deadline-seconds") from None


async def _audit(run_id: str, nats_url: str) -> Audit:
    """Raises: SluiceError: the audit itself failed."""
    command = [sys.executable, "-m", "sluice.cli", "audit", run_id, "--nats-url", nats_url, "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    try:
        found = json.loads(output)
        return Audit(found["lost"], found["trained_twice"], found["staleness_violations"], found["clean"])
    except (ValueError, KeyError, TypeError):
        raise SluiceError(f"the audit of {run_id} ended with code {process.returncode} and no result") from None


def _write(summary: Summary, steps: Sequence[StepView], run: RunView, folder: Path) -> None:
    text = json.dumps(dataclasses.asdict(summary), indent=2) + "\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
    if steps:
        plot_run(steps, f"run {run.id}: {run.state} after {run.training_steps} training steps", folder / "plot.png")


def show(summary: Summary, run: RunView, folder: Path) -> None:
    """The summary as a table for people."""
    table = Table(box=None, show_header=False, pad_edge=False)
    reason = f" ({run.reason})" if run.reason else ""
    rows = {
        "run": f"{run.id}: {run.state}{reason}",
        "training steps": str(summary.steps),
        "reward, first step": _text(summary.reward_first, 3),
        "reward, mean of last 5": _text(summary.reward_last5_mean, 3),
        "seconds": _text(summary.wall_seconds, 1),
        "seconds to reward 0.85": _text(summary.seconds_to_reward_085, 1),
        "seconds for 20 steps": _text(summary.seconds_20_steps, 1),
        "response tokens a second": _text(summary.tokens_per_second, 0),
        "groups issued": str(summary.groups_issued),
        "dropped": dropped_text(summary.dropped),
        "lost": str(summary.lost),
        "trained twice": str(summary.trained_twice),
        "staleness above η": str(summary.staleness_violations),
        "files": f"{folder / 'summary.json'}, {folder / 'plot.png'}, {folder / 'logs'}/",
    }
    for what, how_much in rows.items():
        table.add_row(f"[bold]{what}[/]", how_much)
    Console(soft_wrap=True, highlight=False).print(table)


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
