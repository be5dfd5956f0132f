"""`sluice up` as a user starts and ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.local.state import StackState, running_stacks
from tests.local.processes import alive

ROOT = Path(__file__).parents[2]


@contextmanager
def up(folder: Path, model: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """A `sluice up` that was started in `folder`, by itself."""
    command = [sys.executable, "-m", "sluice.cli", "up", str(ROOT / "configs" / "tiny.toml"), "--name", name]
    command += ["--set", f"model.path={model}"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stack_with(folder: Path, name: str, *services: str) -> StackState:
    """The state of the stack once these services have a process."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for stack in running_stacks(folder / "artifacts"):
            if stack.name == name and set(services) <= set(stack.pids):
                return stack
        time.sleep(0.02)
    raise TimeoutError(f"{name} did not start {services}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ending_it_while_services_start_leaves_no_process(number: int, tmp_path: Path, tiny_model: Path) -> None:
    with up(tmp_path, tiny_model, "local") as process:
        stack = stack_with(tmp_path, "local", "nats", "valkey", "engine-0", "reward-1", "coordinator")
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    assert "Traceback" not in errors
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in stack.pids.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in stack.pids.values())
    assert running_stacks(tmp_path / "artifacts") == []


def test_a_second_stack_starts_beside_the_first_but_not_under_its_name(tmp_path: Path, tiny_model: Path) -> None:
    with up(tmp_path, tiny_model, "one"):
        one = stack_with(tmp_path, "one", "nats", "valkey")
        with up(tmp_path, tiny_model, "one") as again:
            _, errors = again.communicate(timeout=60)
            assert again.returncode == 2
            assert errors.startswith("sluice: --name = one: a stack of that name runs already")
        with up(tmp_path, tiny_model, "two"):
            two = stack_with(tmp_path, "two", "nats", "valkey")
            assert not set(one.ports.values()) & set(two.ports.values())
            assert all(alive(pid) for pid in (one.pids["nats"], two.pids["nats"]))
