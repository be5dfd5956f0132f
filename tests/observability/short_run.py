"""A run of the tiny model on a whole local stack, for everybody who looks at what the services show of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sluice.config import load_run_spec, parse_run_spec
from sluice.local.state import StackState
from sluice.views import RunView

ROOT = Path(__file__).parents[2]
SLUICE = [sys.executable, "-m", "sluice.cli"]
STACK_NAME = "observed"
START_SECONDS = 120.0
STEPS = 4
"""Training steps until everything that a run shows has been shown."""


@dataclass(slots=True)
class ShortRun:
    """A run that has made a few training steps, and is paused but within `train`."""

    run_id: str
    stack_name: str
    api_url: str
    targets: dict[str, str]
    """Where each process of the stack serves its metrics."""
    folder: Path
    """The folder the stack was started in: `sluice` finds it from there."""
    scraped: dict[str, str] = field(default_factory=dict)
    """What each served while the run was running."""
    status: RunView = field(init=False)
    """The run at that moment."""

    def see(self) -> RunView:
        """The run now."""
        return RunView.model_validate(_get(f"{self.api_url}/v1/runs/{self.run_id}").json())

    def scrape(self, name: str) -> str:
        """What one process serves now."""
        return _get(self.targets[name]).text

    @contextmanager
    def train(self) -> Iterator[None]:
        """Within, the run trains; outside it costs no processor time."""
        self._ask("resume")
        try:
            yield
        finally:
            self._ask("pause")

    def _ask(self, action: str) -> None:
        httpx.post(f"{self.api_url}/v1/runs/{self.run_id}/{action}", trust_env=False, timeout=30).raise_for_status()


@contextmanager
def short_run(folder: Path) -> Iterator[ShortRun]:
    """Start a stack in `folder`, train a few steps, pause."""
    for name in ("configs", "models"):
        (folder / name).symlink_to(ROOT / name)
    log = folder / "up.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*SLUICE, "up", "configs/tiny.toml", "--name", STACK_NAME, "--reward-servers", "1"]
    with log.open("w") as output:
        up = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        wait_until(lambda: up.poll() is not None or "trainer healthy" in log.read_text(), log.read_text)
        run = _create(folder)
        wait_until(lambda: run.see().training_steps >= STEPS and run.see().bottleneck is not None, run.see)
        wait_until(lambda: "sluice_evaluation_score{" in run.scrape("coordinator"), run.see)
        run.status = run.see()
        run.scraped = {name: run.scrape(name) for name in run.targets}
        run._ask("pause")
        yield run
    finally:
        up.kill()  # quick, and the kernel ends what it had started
        up.wait(timeout=60)


def wait_until(condition: Callable[[], bool], shown: Callable[[], object], seconds: float = START_SECONDS) -> None:
    """Raises: AssertionError: not within `seconds`; says what is `shown` instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {shown()}"
        time.sleep(0.2)


def _create(folder: Path) -> ShortRun:
    state = StackState.model_validate_json((folder / "artifacts" / STACK_NAME / "stack.json").read_text())
    fields = load_run_spec(ROOT / "configs" / "tiny_evaluated.toml").model_dump(mode="json")
    fields["evaluation"]["every_steps"] = 100_000  # once is enough to be seen
    fields["evaluation"]["sets"][0]["limit"] = 8
    fields["trainer"]["total_steps"] = 100_000  # it never ends by itself
    fields["checkpoint"]["interval"] = 2
    created = httpx.post(
        f"{state.api_url}/v1/runs",
        content=parse_run_spec(fields).canonical_json,
        headers={"Content-Type": "application/json"},
        trust_env=False,
        timeout=60,
    )
    assert created.status_code == 201, created.text
    targets = {
        command: f"http://127.0.0.1:{_metrics_port(command, state.ports)}/metrics"
        for command in state.pids
        if command not in ("nats", "valkey")
    }
    return ShortRun(created.json()["id"], STACK_NAME, state.api_url, targets, folder)


def _metrics_port(command: str, ports: dict[str, int]) -> int:
    match command.split("-", maxsplit=1)[0]:
        case "coordinator":
            return ports["api"]
        case "engine":
            return ports[command]
        case "trainer":
            return ports["trainer-metrics"]
        case _:
            return ports[f"{command}-metrics"]


def _get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=30).raise_for_status()
