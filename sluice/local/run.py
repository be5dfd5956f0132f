"""A whole stack from start to end: folder, table, supervisor, state file."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.cancellation import cancelled_by_sigterm
from sluice.errors import ConfigError
from sluice.local.stack import Stack, StackOptions, plan_stack
from sluice.local.state import ARTIFACTS, StackState, stack_folder, write_state
from sluice.local.supervisor import Notice, Supervisor

MODEL_MAKERS = {
    "tiny": "python -m sluice.models.tiny --out {}",
    "smollm2-135m-instruct": "python -m sluice.models.smollm2 --out {}",
}
"""How the models that come with Sluice are made."""


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A stack whose every service is healthy."""

    stack: Stack
    supervisor: Supervisor
    folder: Path


@asynccontextmanager
async def running_stack(
    name: str,
    options: StackOptions,
    report: Callable[[Notice], None],
    fresh: bool = False,
    artifacts: Path = ARTIFACTS,
) -> AsyncIterator[RunningStack]:
    """Start everything, give it out, end everything, whatever happens in between.

    Args:
        fresh: forget what an earlier stack of that name has stored.
        artifacts: the folder of stacks, in which this one gets a folder of its name.

    Raises:
        ConfigError: the name or a port is taken, a program or the model is missing, or a service says so.
        StackError: a service cannot be brought up.
    """
    check_model(options.model)
    with stack_folder(name, artifacts) as folder:
        if fresh:
            shutil.rmtree(options.data, ignore_errors=True)
        stack = plan_stack(options)
        _prepare(stack)

        def on_notice(notice: Notice) -> None:
            write_state(folder, _state(name, stack, options.data, supervisor))
            report(notice)

        supervisor = Supervisor(stack.services, folder / "logs", on_notice)
        with cancelled_by_sigterm():
            try:
                await supervisor.start()
                yield RunningStack(stack, supervisor, folder)
            finally:
                await supervisor.stop()


def check_model(path: Path) -> None:
    """Raises: ConfigError: `path` is not a checkpoint; says how to make it if it is one of ours."""
    if (path / "config.json").is_file():
        return
    maker = MODEL_MAKERS.get(path.name)
    advice = f"make it with `{maker.format(path)}`" if maker else "give the folder of a Hugging Face checkpoint"
    found = "it has no config.json" if path.is_dir() else "there is no such folder"
    raise ConfigError(f"model.path = {path}: {found}; {advice}")


def _prepare(stack: Stack) -> None:
    for file, text in stack.files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _state(name: str, stack: Stack, data: Path, supervisor: Supervisor) -> StackState:
    commands = [command.name for service in stack.services for command in service.commands]
    return StackState(
        name=name,
        supervisor_pid=os.getpid(),
        api_url=stack.api_url,
        nats_url=stack.nats_url,
        redis_url=stack.redis_url,
        data=str(data),
        ports=stack.ports,
        pids=supervisor.pids,
        logs={command: str(supervisor.log_path(command)) for command in commands},
    )
