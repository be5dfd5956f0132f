"""The paper's ablation ladder on a tiny model: each switch of the recipe after the other, same seeds, real services.

Every rung is what `configs/ablation/` changes, put upon one small run; lengths are scaled to it. The model is a
character-level one of 0.13 M parameters, made once (a minute), whose responses pause for a random time before they
answer a sum or a product of two digits: see ablation_task.py. The accuracy that is compared is the mean outcome over
all sampled groups, which no length punishment and no filter touches.

What such a model shows about arithmetic says nothing about AIME; it shows that every switch does what it is for, and
what it costs in groups. ablation_plot.py draws the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.ablation_task import PROMPT_LENGTH, PROMPTS_FILE, Task, make
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
LADDER = Path("configs/ablation")
RUN_SECONDS = 1800.0
WINDOW = 5
"""Training steps over which a figure is averaged; the first step stands alone."""
SWITCHES = {
    "algorithm": ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "overlong_filtering"),
    "filter": ("enable", "metric"),
}
"""Fields of a rung that count here; dynamic sampling streams, because rounds would need other batch sizes."""
LONGEST, OVERLONG_BUFFER = 16, 6
"""Tokens, where the recipe has 20480 and 4096."""
SMALL_RUN: Mapping[str, Mapping[str, Any]] = {
    # Strictly on-policy, as the ladder is in the paper: no figure then depends on how fast the machine is.
    "asynchrony": {"max_staleness": 0},
    "algorithm": {"proximal": "recompute", "importance_weight_cap": None},
    # Several updates on a batch, as in the paper: with one alone no ratio would ever reach a clip range.
    "trainer": {"prompts_per_step": 16, "updates_per_step": 4, "target_reward": None},
    "optim": {"lr": 1e-3},
}
READING = (
    f"A row is the mean of {WINDOW} training steps up to the one it names, of the first step alone for step 1; spreads "
    "are over seeds. accuracy: mean outcome over all sampled groups, dropped ones included. groups: issued since the "
    "beginning. clipped high: share of trained tokens whose ratio passed the upper clip."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="training steps of a run (default 60)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each rung (default 2)")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """All rungs on one stack, a seed at a time."""
    steps, seeds = (2, 1) if arguments.quick else (arguments.steps, arguments.seeds)
    base, rungs = _quick() if arguments.quick else (small_run(arguments.output / "ablation-model"), _ladder())
    folder: Path = arguments.output / STACK
    try:
        options = stack_options(base, folder)
        async with running_stack(STACK, options, lambda notice: None, True, arguments.output) as running:
            specs = {name: [on_rung(base, rung, steps, seed) for seed in range(seeds)] for name, rung in rungs.items()}
            found = await running.supervisor.during(_train_all(specs, running))
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)
    settings = {"ladder": str(LADDER), "steps": steps, "seeds": seeds, "run": base.model_dump(mode="json")}
    return Report(settings, figures_of(found), {}, READING)


def _ladder() -> dict[str, RunSpec]:
    return {file.stem: load_run_spec(file) for file in sorted(LADDER.glob("*.toml"))}


def _quick() -> tuple[RunSpec, dict[str, RunSpec]]:
    """The tiny run as it is, whose model is there already, with the first rung and the last."""
    rungs = _ladder()
    return load_run_spec(Path("configs/tiny.toml")), {name: rungs[name] for name in (min(rungs), max(rungs))}


def small_run(folder: Path) -> RunSpec:
    """The tiny run with the ablation's own model and prompts, which are made in `folder` if they are not there."""
    make(folder, Task())
    fields: dict[str, Any] = load_run_spec(Path("configs/tiny.toml")).model_dump(mode="json")
    fields["model"] |= {"path": str(folder)}
    fields["data"] |= {"train_files": [str(folder / PROMPTS_FILE)], "max_prompt_length": PROMPT_LENGTH}
    fields["rollout"] |= {"max_response_length": LONGEST}
    for section, values in SMALL_RUN.items():
        fields[section] |= values
    return parse_run_spec(fields)


def on_rung(base: RunSpec, rung: RunSpec, steps: int, seed: int) -> RunSpec:
    """The base run with the switches of a rung."""
    fields: dict[str, Any] = base.model_dump(mode="json")
    chosen = rung.model_dump(mode="json")
    for section, names in SWITCHES.items():
        fields[section] |= {name: chosen[section][name] for name in names}
    fields["reward"]["overlong_buffer"] = OVERLONG_BUFFER if rung.reward.overlong_buffer else 0
    fields["trainer"] |= {"total_steps": steps, "seed": seed}
    fields["checkpoint"]["interval"] = steps
    fields["name"] = rung.name
    return parse_run_spec(fields)


async def _train_all(specs: dict[str, list[RunSpec]], running: RunningStack) -> dict[str, list[Measured]]:
    async with RunsClient(running.stack.api_url, running.stack.token) as client:
        # A seed through all rungs, then the next: whatever changes on the machine meets all rungs alike.
        found: dict[str, list[Measured]] = {}
        for seed in range(len(next(iter(specs.values())))):
            for name, runs in specs.items():
                for step, figures in figures_at_fixed_steps(await _train(client, runs[seed])).items():
                    found.setdefault(f"{name}, step {step}", []).append(figures)
        return found


async def _train(client: RunsClient, spec: RunSpec) -> Sequence[StepView]:
    run = await client.create(spec)
    async with asyncio.timeout(RUN_SECONDS):
        while not (run := await client.get(run.id)).state.terminal:
            await asyncio.sleep(0.2)
    if run.state is not RunState.SUCCEEDED:
        raise SluiceError(f"run {run.id} {run.state}: {run.reason}")
    return await client.steps(run.id)


def figures_at_fixed_steps(steps: Sequence[StepView]) -> dict[int, Measured]:
    """At the first step and at each sixth of the run."""
    fixed = {1, *(max(1, len(steps) * sixth // 6) for sixth in range(1, 7))}
    return {at: _figures(steps, at) for at in sorted(fixed)}


def _figures(steps: Sequence[StepView], at: int) -> Measured:
    window = steps[at - 1 : at] if at == 1 else steps[max(0, at - WINDOW) : at]

    def sampled(value: Callable[[StepView], float | None]) -> float:
        """Mean over all sampled groups of the window."""
        weights = [step.batch.sampled_groups for step in window]
        return sum(w * (value(step) or 0.0) for w, step in zip(weights, window, strict=True)) / sum(weights)

    trained = [step.training for step in window if step.training is not None]
    return {
        "accuracy": sampled(lambda step: step.batch.acc_mean),
        "keep rate": sampled(lambda step: step.batch.keep_rate),
        "length": sampled(lambda step: step.batch.response_length_mean),
        "truncated": sampled(lambda step: step.batch.truncated_share),
        "entropy": fmean(training.entropy or 0.0 for training in trained),
        "clipped high": fmean(training.clip_fraction_high or 0.0 for training in trained),
        "groups": float(sum(step.batch.sampled_groups for step in steps[:at])),
    }


if __name__ == "__main__":
    main()
