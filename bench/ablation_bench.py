"""The paper's ablation ladder on the tiny model: each switch of the recipe by itself, same seeds, real services.

Every rung is what `configs/ablation/` changes, put upon `configs/tiny.toml`; lengths are scaled to the tiny model. The
reward that is compared is the mean outcome over all sampled groups, which no length punishment and no filter touches.
What a character-level model of 0.1 M parameters shows about additions says nothing about AIME; it shows that every
switch does something, and what it costs in groups.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Measured, Report, figures_of, run_benchmark
from sluice.cli.up import stack_options
from sluice.client import RunsClient
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.errors import SluiceError
from sluice.local.run import RunningStack, running_stack
from sluice.types import RunState
from sluice.views import StepView

NAME = "ablation"
STACK = "ablation-stack"
LADDER = "configs/ablation"
RUN_SECONDS = 900.0
LAST = 5
"""Training steps at the end whose mean is compared."""
SWITCHES = {
    "algorithm": ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "overlong_filtering"),
    "filter": ("enable", "metric"),
}
"""Fields of a rung that count here; dynamic sampling streams, because rounds would need other batch sizes."""
OVERLONG_BUFFER = 2
"""Tokens, where the recipe has 4096 of 20480: of eight, a response of six or more is punished."""

READING = (
    "accuracy: mean outcome over all sampled groups, dropped ones included; first: the first training step, last: the "
    f"last {LAST}. issued groups: what the run cost. keep rate: over the run."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each rung")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """All rungs on one stack, a seed at a time."""
    steps, seeds = (2, 1) if arguments.quick else (arguments.steps, arguments.seeds)
    rungs = _ladder(arguments.quick)
    tiny = load_run_spec(Path("configs/tiny.toml"))
    folder: Path = arguments.output / STACK
    try:
        options = stack_options(tiny, folder)
        async with running_stack(STACK, options, lambda notice: None, True, arguments.output) as running:
            specs = {name: [on_tiny(tiny, rung, steps, seed) for seed in range(seeds)] for name, rung in rungs.items()}
            found = await running.supervisor.during(_train_all(specs, running))
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)
    settings = {"run_file": "configs/tiny.toml", "ladder": LADDER, "steps": steps, "seeds": seeds}
    return Report(settings, figures_of(found), {}, READING)


def _ladder(quick: bool) -> dict[str, RunSpec]:
    rungs = {file.stem: load_run_spec(file) for file in sorted(Path(LADDER).glob("*.toml"))}
    return {name: rungs[name] for name in (min(rungs), max(rungs))} if quick else rungs


def on_tiny(tiny: RunSpec, rung: RunSpec, steps: int, seed: int) -> RunSpec:
    """The tiny run with the switches of a rung."""
    fields: dict[str, Any] = tiny.model_dump(mode="json")
    chosen = rung.model_dump(mode="json")
    for section, names in SWITCHES.items():
        fields[section] |= {name: chosen[section][name] for name in names}
    fields["reward"]["overlong_buffer"] = OVERLONG_BUFFER if rung.reward.overlong_buffer else 0
    fields["trainer"] |= {"total_steps": steps, "seed": seed, "target_reward": None}
    fields["checkpoint"]["interval"] = steps
    fields["name"] = rung.name
    return parse_run_spec(fields)


async def _train_all(specs: dict[str, list[RunSpec]], running: RunningStack) -> dict[str, list[Measured]]:
    async with RunsClient(running.stack.api_url, running.stack.token) as client:
        # A seed through all rungs, then the next: whatever changes on the machine meets all rungs alike.
        found: dict[str, list[Measured]] = {name: [] for name in specs}
        for seed in range(len(next(iter(specs.values())))):
            for name, runs in specs.items():
                found[name].append(await _train(client, runs[seed]))
        return found


async def _train(client: RunsClient, spec: RunSpec) -> Measured:
    run = await client.create(spec)
    async with asyncio.timeout(RUN_SECONDS):
        while not (run := await client.get(run.id)).state.terminal:
            await asyncio.sleep(0.2)
    if run.state is not RunState.SUCCEEDED:
        raise SluiceError(f"run {run.id} {run.state}: {run.reason}")
    steps = await client.steps(run.id)
    return {
        "accuracy, first": _mean_accuracy(steps[:1]),
        "accuracy, last": _mean_accuracy(steps[-LAST:]),
        "keep rate": run.counts.keep_rate or 0.0,
        "issued groups": float(run.counts.issued),
    }


def _mean_accuracy(steps: Sequence[StepView]) -> float:
    """Over all sampled groups of these steps."""
    weights = [step.batch.sampled_groups for step in steps]
    accuracies = [step.batch.acc_mean or 0.0 for step in steps]
    return sum(w * a for w, a in zip(weights, accuracies, strict=True)) / sum(weights)


if __name__ == "__main__":
    main()
