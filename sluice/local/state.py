"""The state file of a running stack: how other commands find it. A lock says whether it runs; the file says where."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ValidationError

from sluice.errors import ConfigError
from sluice.storage import check_writable

ARTIFACTS = Path("artifacts")
STATE_FILE = "stack.json"
_LOCK_FILE = "stack.lock"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class StackState(BaseModel):
    """What `stack.json` holds."""

    name: str
    supervisor_pid: int
    api_url: str
    nats_url: str
    redis_url: str
    data: str
    ports: dict[str, int]
    pids: dict[str, int]
    logs: dict[str, str]


@contextmanager
def stack_folder(name: str, artifacts: Path = ARTIFACTS) -> Iterator[Path]:
    """Hold `artifacts/<name>` as the only stack of that name; the kernel gives it back when this process dies.

    Raises:
        ConfigError: `name` cannot be one, or another stack of that name runs here.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name = {name!r}: a stack's name is 1 to 64 lower-case letters, digits, dots, dashes and underscores, "
            "and starts with a letter or a digit"
        )
    folder = artifacts / name
    check_writable(folder, "--name")
    with (folder / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--name = {name}: a stack of that name runs already in {folder}; stop it, or choose another name"
            ) from None
        try:
            yield folder
        finally:
            (folder / STATE_FILE).unlink(missing_ok=True)


def write_state(folder: Path, state: StackState) -> None:
    """Replace the file in one step: a reader never sees half of it."""
    partial = folder / f"{STATE_FILE}.partial"
    partial.write_text(json.dumps(state.model_dump(), indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / STATE_FILE)


def running_stacks(artifacts: Path = ARTIFACTS) -> list[StackState]:
    """The stacks of this working folder whose supervisor is alive, by name."""
    found = (_read(file) for file in sorted(artifacts.glob(f"*/{STATE_FILE}")))
    return [state for state in found if state is not None and _alive(state.supervisor_pid)]


def find_stack(name: str | None, artifacts: Path = ARTIFACTS) -> StackState:
    """The running stack called `name`, or the only one there is.

    Raises:
        ConfigError: there is none, or there are several and no name was given.
    """
    stacks = running_stacks(artifacts)
    names = ", ".join(s.name for s in stacks)
    if name is not None:
        for stack in stacks:
            if stack.name == name:
                return stack
        raise ConfigError(f"no stack called {name!r} runs in this folder; running: {names or 'none'}; see `sluice up`")
    if not stacks:
        raise ConfigError(
            "no stack runs in this folder; start one with `sluice up RUN_FILE`, or say where another is (--at with its "
            "API's address; --nats-url for `audit` and `replay --train`)"
        )
    if len(stacks) > 1:
        raise ConfigError(f"several stacks run in this folder ({names}); choose one by name (--at)")
    return stacks[0]


def _read(file: Path) -> StackState | None:
    try:
        return StackState.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None  # it stopped in this moment, or another version of Sluice wrote it


def _alive(pid: int) -> bool:
    """False for a supervisor that was killed with -9 and could not remove its file."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it runs as another user
    return True
