"""Scheduling: what asynchrony and streaming gain, on the real services around a simulated engine and trainer.

Staleness: wall clock of the same run at staleness bounds 0 (synchronous), 1, 2, 4 and 8, on an engine with room for all
prompts. Responses take log-normal time with the 99th percentile, and a cap, at 10 times the median; training takes 30 %
of a synchronous step; half of the groups are kept.

Sampling: rounds, streaming on-policy as rounds are, and streaming at η = 1, at keep rates 0.2, 0.5 and 0.8, on an
engine that generates one training batch of prompts at a time, with the tokens that neither trained nor were dropped by
their outcomes. Its responses and runs are shorter: only modes that share them are compared.

Beside each stands the model: the same filter queue and the same draws in virtual time, with services that cost nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Figure, Measured, Report, figures_of, run_benchmark
from bench.simulated.experiment import Facts, simulated_stack
from bench.simulated.model import play
from bench.simulated.stack import Simulation
from sluice.config import RunSpec, load_run_spec, parse_run_spec

NAME = "scheduling"
ETAS: tuple[int, ...] = (0, 1, 2, 4, 8)
KEEP_RATES: tuple[float, ...] = (0.2, 0.5, 0.8)
TRAIN_SHARE = 0.3
"""Of a synchronous step."""
TAIL = 10.0
"""The 99th percentile of a response's time, and the longest, in medians."""
RUN_SECONDS = 1800.0
NOTHING = "constant:0.000001"
MODEL = ROOT / "models" / "tiny"
TOKENS = 128
"""Of the longest response."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--median", type=float, default=0.2, help="seconds of a median response")
    parser.add_argument("--steps", type=int, default=10, help="training steps of a run")
    parser.add_argument("--sampling-median", type=float, default=0.05, help="--median of the runs that compare modes")
    parser.add_argument("--sampling-steps", type=int, default=5, help="--steps of the runs that compare modes")
    parser.add_argument("--batch", type=int, default=16, help="groups of a training step")
    parser.add_argument("--rounds", type=int, default=1, help="times that each run is repeated")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """Both experiments, in one invocation; runs on the same simulation share a stack."""
    chosen, etas, keep_rates, concurrency = arguments, ETAS, KEEP_RATES, arguments.batch
    if arguments.quick:
        quick = {"median": 0.02, "steps": 3, "sampling_median": 0.02, "sampling_steps": 3, "batch": 4, "rounds": 1}
        chosen = argparse.Namespace(**{**vars(arguments), **quick})
        etas, keep_rates, concurrency = (0, 1), (0.5,), 0
    shorter = {"median": chosen.sampling_median, "steps": chosen.sampling_steps}
    sampling = argparse.Namespace(**{**vars(chosen), **shorter})
    plans: dict[Simulation, dict[str, RunSpec]] = {}
    plans.setdefault(_simulation(chosen, 0.5, 0), {}).update({f"η = {eta}": _spec(chosen, eta) for eta in etas})
    for keep in keep_rates:
        modes = {
            f"rounds, keep {keep}": _rounds(_spec(sampling, 0)),
            f"streaming, keep {keep}": _spec(sampling, 0),
            f"streaming η = 1, keep {keep}": _spec(sampling, 1),
        }
        plans.setdefault(_simulation(sampling, keep, concurrency), {}).update(modes)
    found: dict[str, list[Measured]] = {}
    for simulation, specs in plans.items():
        found |= await _measure(chosen, simulation, specs)
    names = ("median", "steps", "sampling_median", "sampling_steps", "batch", "rounds")
    settings = {name: getattr(chosen, name) for name in names}
    figures = figures_of(found)
    return Report(settings, figures, _ratios(figures, etas, keep_rates), READING)


READING = (
    "model / measured: 1 would be services that cost nothing. speed-up: over η = 0, measured and by the model. "
    "Wasted tokens neither trained nor were dropped by their outcomes."
)


async def _measure(
    chosen: argparse.Namespace, simulation: Simulation, specs: Mapping[str, RunSpec]
) -> dict[str, list[Measured]]:
    """Each run once a round; the same run under two names is not run twice."""
    folder: Path = chosen.output / "scheduling-stack"
    found: dict[str, list[Measured]] = {name: [] for name in specs}
    async with simulated_stack(simulation, MODEL, folder) as stack:
        for _ in range(chosen.rounds):
            measured: dict[str, Measured] = {}
            for name, spec in specs.items():
                if spec.config_hash not in measured:
                    facts = await stack.run(spec, RUN_SECONDS)
                    measured[spec.config_hash] = _figures(facts, play(spec, simulation).seconds)
                found[name].append(measured[spec.config_hash])
    return found


def _figures(facts: Facts, model_seconds: float) -> Measured:
    return {
        "seconds": facts.seconds,
        "model": model_seconds,
        "model / measured": model_seconds / facts.seconds,
        "groups": facts.groups,
        "tokens": facts.tokens,
        "wasted tokens": facts.wasted_tokens,
        "staleness": facts.staleness_max,
    }


def _simulation(chosen: argparse.Namespace, keep_rate: float, concurrency: int) -> Simulation:
    """Training takes TRAIN_SHARE of a synchronous step: the model says how long the rest of that is."""
    longest = TAIL * chosen.median
    generating = Simulation(
        latency=f"lognormal:{chosen.median}:{longest}:{longest}",
        train=NOTHING,
        keep_rate=keep_rate,
        pace=TOKENS / longest,
        concurrency=concurrency,
    )
    step = play(_spec(chosen, 0), generating).seconds / chosen.steps
    return replace(generating, train=f"constant:{step * TRAIN_SHARE / (1 - TRAIN_SHARE)}")


def _spec(chosen: argparse.Namespace, staleness: int) -> RunSpec:
    """The tiny model's additions in batches of `chosen.batch` groups of eight; nothing is purged before the end."""
    fields: dict[str, Any] = load_run_spec(Path("configs/tiny.toml")).model_dump(mode="json")
    fields["rollout"] |= {"max_response_length": TOKENS}
    fields["asynchrony"] |= {"max_staleness": staleness}
    fields["trainer"] |= {
        "prompts_per_step": chosen.batch,
        "total_steps": chosen.steps,
        "max_tokens_per_micro_batch": 4096,
    }
    fields["checkpoint"] |= {"interval": chosen.steps}
    return parse_run_spec(fields)


def _rounds(spec: RunSpec) -> RunSpec:
    """The same run by the released recipe: generation batches of three training batches."""
    fields = spec.model_dump(mode="json")
    fields["filter"] |= {"mode": "rounds", "gen_batch_size": 3 * spec.trainer.prompts_per_step}
    return parse_run_spec(fields)


def _ratios(
    figures: Mapping[str, Mapping[str, Figure]], etas: tuple[int, ...], keep_rates: tuple[float, ...]
) -> dict[str, Figure]:
    def median(row: str, figure: str) -> float:
        value = figures[row][figure]
        return value if isinstance(value, float) else value.median

    pairs = {f"η = {eta} over η = 0": ("η = 0", f"η = {eta}") for eta in etas[1:]}
    for keep in keep_rates:
        for mode in ("streaming", "streaming η = 1"):
            pairs[f"{mode} over rounds, keep {keep}"] = (f"rounds, keep {keep}", f"{mode}, keep {keep}")
    ratios: dict[str, Figure] = {}
    for name, (slow, fast) in pairs.items():
        ratios[f"speed-up, {name}"] = median(slow, "seconds") / median(fast, "seconds")
        ratios[f"speed-up by the model, {name}"] = median(slow, "model") / median(fast, "model")
    return ratios


if __name__ == "__main__":
    main()
