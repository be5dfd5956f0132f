"""A run under a storm: random services of a whole stack are killed with -9, it goes on by itself, and it is audited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.simulated.stack import Simulation, simulated
from sluice.audit import audit
from sluice.audit.report import AuditReport
from sluice.client import NoServerError, RunsClient
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.errors import TransientError
from sluice.local.stack import Stack, StackOptions, plan_stack
from sluice.local.supervisor import Change, Notice, Supervisor
from sluice.transport.nats import Bus
from sluice.types import RunState
from sluice.views import RunAction, RunView
from tests.chaos.replay import Recording
from tests.rollout.stage import Stage

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "models" / "tiny"
CALM_STEPS = 3
"""Training steps that the run must make by itself after the last kill."""
CALM_SECONDS = 240.0
SIMULATION = Simulation(latency="lognormal:0.1:1.0:2.0", train="constant:0.3", keep_rate=0.5)


@dataclass(frozen=True, slots=True)
class Storm:
    """What is done to one run; the same seed chooses the same services at the same moments."""

    kills: int
    seed: int
    simulated: bool
    """Simulated engines and trainer instead of the real ones: more groups, more kills, no weights to compare."""
    pause_seconds: float
    """Mean time between kills."""
    ranks: int = 1
    """Of the trainer; killing one ends all."""
    silence_seconds: float | None = None
    """After how long the prompts of a silent worker go to another one; None: as in service."""


@dataclass(slots=True)
class Outcome:
    """How a run came through."""

    storm: Storm
    killed: Counter[str] = field(default_factory=Counter)
    """Kills by command."""
    deleted_redis_files: int = 0
    seconds: float = 0.0
    report: AuditReport | None = None
    replayed: str = ""
    """`equal` when an undisturbed trainer made the same weights, bit for bit; empty when there are none to compare."""

    @property
    def clean(self) -> bool:
        return self.report is not None and self.report.clean and self.replayed in ("", "equal")


class Weather:
    """A running stack and which of its services are healthy now."""

    def __init__(self, options: StackOptions, logs: Path) -> None:
        self.options = options
        self.healthy: set[str] = set()
        self.stack: Stack = plan_stack(options)
        self.supervisor = Supervisor(self.stack.services, logs, self._note)

    def _note(self, notice: Notice) -> None:
        if notice.change is Change.HEALTHY:
            self.healthy.add(notice.service)
        else:
            self.healthy.discard(notice.service)

    def victims(self) -> dict[str, int]:
        """Process ids of healthy services by command; a service that is still starting is left to start."""
        pids = self.supervisor.pids
        return {c.name: pids[c.name] for s in self.stack.services if s.name in self.healthy for c in s.commands}


@asynccontextmanager
async def weather(storm: Storm, folder: Path) -> AsyncIterator[Weather]:
    """The stack, healthy; ended with the block."""
    change: Callable[[Any], Any] = simulated(SIMULATION) if storm.simulated else lambda service: service
    options = StackOptions(
        data=folder / "data",
        model=MODEL,
        engine_dtype="float32",
        rollout_workers=2,
        trainer_ranks=storm.ranks,
        change=change,
    )
    shutil.rmtree(folder, ignore_errors=True)
    found = Weather(options, folder / "logs")
    for file, text in found.stack.files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    try:
        await found.supervisor.start()
        yield found
    finally:
        await found.supervisor.stop()


def spec_of(storm: Storm) -> RunSpec:
    """configs/tiny.toml without an end, with small batches and frequent checkpoints."""
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["checkpoint"] |= {"interval": 3}
    fields["trainer"] |= {"seed": storm.seed, "total_steps": 1_000_000, "prompts_per_step": 8}
    return parse_run_spec(fields)


async def weather_the(storm: Storm, folder: Path) -> Outcome:
    """Run, kill, let it recover, stop it, audit it, and replay what a real trainer trained.

    Raises:
        StackError: a service did not come up again.
        AssertionError: the run did not go on by itself.
    """
    outcome, began = Outcome(storm), time.monotonic()
    async with weather(storm, folder) as around, RunsClient(around.stack.api_url) as client:
        outcome.report = await around.supervisor.during(_survive(storm, outcome, around, client, folder))
    outcome.seconds = time.monotonic() - began
    return outcome


async def _survive(storm: Storm, outcome: Outcome, around: Weather, client: RunsClient, folder: Path) -> AuditReport:
    bus = await Bus.connect(around.stack.nats_url, "chaos")
    run = await client.create(spec_of(storm))
    recording = Recording(bus, run.id)
    if storm.silence_seconds is not None:
        await Stage(bus, MODEL, folder, run.id).forget_silent_workers_after(storm.silence_seconds)
    try:
        await _steps(client, run.id, 1)
        await _kill(storm, outcome, around)
        reached = await _steps(client, run.id, 0)
        await _steps(client, run.id, reached.training_steps + CALM_STEPS)
        await client.control(run.id, RunAction.STOP, "the storm is over")
        await _until(client, run.id, lambda view: view.state is RunState.STOPPED)
        report = await audit(around.stack.nats_url, run.id)
        if not storm.simulated:
            outcome.replayed = await recording.replay(folder / "replay", storm.ranks)
        return report
    finally:
        await recording.end()
        await bus.close()


async def _kill(storm: Storm, outcome: Outcome, around: Weather) -> None:
    """Kill one, or now and then two at once; Redis sometimes loses its files as well."""
    rng = random.Random(storm.seed)
    while (left := storm.kills - outcome.killed.total()) > 0:
        await asyncio.sleep(rng.uniform(0.2, 2 * storm.pause_seconds))
        victims = around.victims()
        chosen = rng.sample(sorted(victims), min(rng.choice((1, 1, 1, 2)), left, len(victims)))
        for command in chosen:
            if command == "valkey" and rng.random() < 0.5:
                shutil.rmtree(around.options.data / "valkey", ignore_errors=True)
                outcome.deleted_redis_files += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(victims[command], signal.SIGKILL)
                outcome.killed[command] += 1


async def _steps(client: RunsClient, run_id: str, steps: int) -> RunView:
    return await _until(client, run_id, lambda view: view.training_steps >= steps)


async def _until(client: RunsClient, run_id: str, wanted: Callable[[RunView], bool]) -> RunView:
    view: RunView | None = None
    try:
        async with asyncio.timeout(CALM_SECONDS):
            while view is None or not wanted(view):
                await asyncio.sleep(0.2)
                with contextlib.suppress(NoServerError, TransientError):  # the coordinator may be away
                    view = await client.get(run_id)
            return view
    except TimeoutError:
        raise AssertionError(f"after {CALM_SECONDS} s the run has not gone on: {view}") from None
