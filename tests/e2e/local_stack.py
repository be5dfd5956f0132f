"""A whole stack started by the command line, as a user would, and what tests do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.client import NoServerError, RunsClient
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.errors import TransientError
from sluice.local.state import StackState
from sluice.types import RunState
from sluice.views import RunView

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 180.0
SLUICE = [sys.executable, "-m", "sluice.cli"]


class LocalStack:
    """What `sluice up` started; its state file says where everything is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = ROOT / "artifacts" / name / "stack.json"

    @property
    def state(self) -> StackState:
        return StackState.model_validate_json(self._file.read_text(encoding="utf-8"))

    @property
    def data(self) -> Path:
        """SLUICE_DATA_DIR of its services."""
        return self._file.parent / "data"

    def kill(self, command: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to one process of the stack; returns its pid."""
        pid = self.state.pids[command]
        os.kill(pid, number)
        return pid

    async def wait_until_restarted(self, command: str, old_pid: int, seconds: float = 90) -> None:
        """Until the supervisor has started `command` again."""
        async with asyncio.timeout(seconds):
            while self.state.pids.get(command, old_pid) == old_pid:
                await asyncio.sleep(0.2)

    def client(self) -> RunsClient:
        return RunsClient(self.state.api_url)

    def logs(self, *arguments: str) -> list[dict[str, Any]]:
        """The lines that `sluice logs` shows of this stack."""
        command = [*SLUICE, "logs", *arguments, "--stack", self.name, "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def audit(self, run_id: str) -> dict[str, Any]:
        """What `sluice audit` says of a run."""
        command = [*SLUICE, "audit", run_id, "--at", self.name, "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        return dict(json.loads(done.stdout))


@contextmanager
def local_stack(name: str, *flags: str) -> Iterator[LocalStack]:
    """`sluice up configs/tiny.toml`, until the block ends."""
    name = f"{name}-{os.getpid()}"
    log = ROOT / "artifacts" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as output:
        up = subprocess.Popen(
            [*SLUICE, "up", "configs/tiny.toml", "--name", name, *flags], cwd=ROOT, stdout=output, stderr=output
        )
    stack = LocalStack(name)
    try:
        _wait_until_healthy(up, log)
        yield stack
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(timeout=60)


def _wait_until_healthy(up: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert up.poll() is None, f"sluice up ended: {log.read_text()}"
        if "trainer healthy" in log.read_text():
            return
        time.sleep(0.2)
    raise TimeoutError(f"not healthy after {START_SECONDS} s: {log.read_text()}")


def tiny(evaluation: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    """configs/tiny.toml with `section__field=value` changes, and an `[evaluation]` section if it is given."""
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["evaluation"] |= evaluation or {}
    for path, value in changes.items():
        section, field = path.split("__")
        fields[section][field] = value
    return parse_run_spec(fields)


def addition(**settings: Any) -> dict[str, Any]:
    """An `[evaluation]` section on the sums of the tiny model, with settings of its own."""
    files = ["configs/data/tiny_addition.jsonl"]
    limit = settings.pop("limit", 32)
    return {"sets": [{"name": "addition", "files": files, "limit": limit}], "samples": 8} | settings


async def wait_for(client: RunsClient, run_id: str, *states: RunState, seconds: float = 240) -> RunView:
    """The run, once it is in one of `states`."""
    return await _wait_until(client, run_id, lambda run: run.state in states, seconds)


async def wait_for_steps(client: RunsClient, run_id: str, steps: int, seconds: float = 240) -> RunView:
    """The run, once `steps` training steps are published."""
    return await _wait_until(client, run_id, lambda run: run.training_steps >= steps, seconds)


async def _wait_until(client: RunsClient, run_id: str, wanted: Callable[[RunView], bool], seconds: float) -> RunView:
    run: RunView | None = None
    try:
        async with asyncio.timeout(seconds):
            while run is None or not wanted(run):
                await asyncio.sleep(0.2)
                with contextlib.suppress(NoServerError, TransientError):  # its coordinator may have been killed
                    run = await client.get(run_id)
        return run
    except TimeoutError:
        raise AssertionError(f"after {seconds} s the run is {run}") from None


def assert_clean(audit: dict[str, Any], trained: int) -> None:
    """Every batch trained exactly once, nothing lost, nothing stale."""
    assert audit["findings"] == []
    assert (audit["lost"], audit["trained_twice"], audit["staleness_violations"]) == (0, 0, 0)
    assert audit["trained"] == trained
    assert audit["issued"] == audit["trained"] + sum(audit["dropped"].values()) + audit["live"]
