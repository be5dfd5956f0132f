"""A training step of the running system: where its seconds go, and who uses the cores.

Starts a whole stack with its own data folder, trains a few steps of a run file, and reads the answer from what the
services themselves have stored: step events, weights_applied events, GROUPS messages and the times of ledger records.
The first step is left out, because it waits for everybody's start, and so are the last ones, beside which no groups
are made any more. The checkpoint is in the last step; shown apart is for how long it holds training up.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bench.harness import Report, run_benchmark
from bench.processes import machine_cpu_seconds, session_cpu_seconds
from bench.recorded import Recorded, read_run
from bench.step_split import Sample, split
from sluice.cli.resolve import resolve
from sluice.cli.up import stack_options
from sluice.client import RunsClient
from sluice.config import RunSpec, load_run_spec
from sluice.errors import SluiceError, WaitTimeoutError
from sluice.local.run import RunningStack, running_stack
from sluice.transport.nats import Bus
from sluice.types import RunState

NAME = "step"
STACK = "step-stack"
SAMPLE_SECONDS = 0.25
DEADLINE_SECONDS = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-file", type=Path, default=Path("configs/demo.toml"), help="the run")
    parser.add_argument("--steps", type=int, default=6, help="training steps that count")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """One run on one stack."""
    file, steps = (Path("configs/tiny.toml"), 2) if arguments.quick else (arguments.run_file, arguments.steps)
    total = 1 + steps + max(load_run_spec(file).asynchrony.max_staleness, 1)
    overrides = [f"trainer.total_steps={total}", f"checkpoint.interval={total}", "trainer.target_reward=none"]
    spec = resolve(file, overrides)
    folder: Path = arguments.output / STACK
    try:
        options = stack_options(spec, folder)
        async with running_stack(STACK, options, lambda notice: None, True, arguments.output) as running:
            samples, recorded = await running.supervisor.during(_train(spec, running))
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)  # a checkpoint of 1.9 GB in the case of the demo
    settings = {"run_file": str(file), "steps": steps, "set": overrides}
    return Report(settings, split(recorded, samples, steps), {}, READING)


READING = (
    "seconds: of each counted step, or of each group. share: of the mean step. The trainer's phases follow one another "
    "and make up the step; generation, reward and weight sync go on beside them, so shares add up to more than 1. "
    "cores: how many a process kept busy."
)


async def _train(spec: RunSpec, running: RunningStack) -> tuple[list[Sample], Recorded]:
    samples: list[Sample] = []
    watching = asyncio.create_task(_watch(samples, lambda: running.supervisor.pids))
    try:
        run_id = await _run(spec, running)
        bus = await Bus.connect(running.stack.nats_url, "bench")
        try:
            return samples, await read_run(bus, run_id)
        finally:
            await bus.close()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _run(spec: RunSpec, running: RunningStack) -> str:
    """The id of the run once it has succeeded. Raises: SluiceError: it did not."""
    async with RunsClient(running.stack.api_url, running.stack.token) as client:
        run = await client.create(spec, uuid.uuid4().hex)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not run.state.terminal:
                    await asyncio.sleep(1.0)
                    run = await client.get(run.id)
        except TimeoutError:
            raise WaitTimeoutError("bench_run", DEADLINE_SECONDS, "--steps") from None
    if run.state is not RunState.SUCCEEDED:
        raise SluiceError(f"run {run.id} is {run.state}: {run.reason}; see {running.folder / 'logs'}")
    return run.id


async def _watch(samples: list[Sample], pids: Callable[[], dict[str, int]]) -> None:
    """Note what each process has used so far, until cancelled."""
    while True:
        by_session = session_cpu_seconds()
        used = {(name, pid): by_session.get(pid, 0.0) for name, pid in pids().items()}
        samples.append(Sample(time.time(), machine_cpu_seconds(), used))
        await asyncio.sleep(SAMPLE_SECONDS)


if __name__ == "__main__":
    main()
