"""Memory: what each service holds while 100,000 groups of one run go through it, and what a group costs it.

Coordinator, rollout worker, reward, NATS and Valkey are the real ones; engine and trainer are simulated and take next
to no modelled time, so that the run is as fast as the processors allow. Half of the groups are kept. Every few seconds
the resident memory of each service, all its processes together, is noted beside the number of groups issued; growth is
the slope of the straight line through what was noted after the first fifth. At the end the run is audited.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import ROOT, Figure, Report, run_benchmark
from bench.processes import session_cpu_seconds, session_rss_mib
from bench.simulated.experiment import SimulatedStack, simulated_stack
from bench.simulated.stack import Simulation
from sluice.config import RunSpec, load_run_spec, parse_run_spec

NAME = "memory"
WATCHED = ("coordinator", "rollout-0", "reward-0", "nats", "valkey", "engine-0", "trainer-0")
KEEP_RATE = 0.5
GROUP_SIZE, BATCH, STALENESS, CHECKPOINT_INTERVAL = 2, 256, 2, 4
QUICK_BATCH, QUICK_GROUPS = 16, 256
INSTANT = "constant:0.000001"
RUN_SECONDS = 7200.0
SHARES = (0.1, 0.2, 0.5, 1.0)
"""Of the run's groups, at which memory is told."""
SETTLED = 0.2
"""Until then services still load what they need and fill what they keep anyhow."""


@dataclass(frozen=True, slots=True)
class Sample:
    """At `time`: groups issued so far, and by service MiB resident and CPU-seconds used."""

    time: float
    groups: int
    mib: dict[str, float]
    cpu: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000, help="groups that go through")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """One run of so many groups, watched from outside."""
    groups, batch, every = arguments.groups, BATCH, arguments.every
    if arguments.quick:
        groups, batch, every = QUICK_GROUPS, QUICK_BATCH, 0.2
    simulation = Simulation(latency=INSTANT, train=INSTANT, keep_rate=KEEP_RATE, groups_in_flight=2 * batch)
    spec = _spec(groups, batch)
    folder: Path = arguments.output / "memory-stack"
    async with simulated_stack(simulation, ROOT / "models" / "tiny", folder) as stack:
        samples = await _watched(stack, spec, every)
    settings = {
        "groups": samples[-1].groups,
        "group_size": GROUP_SIZE,
        "prompts_per_step": batch,
        "max_staleness": STALENESS,
        "checkpoint_interval": CHECKPOINT_INTERVAL,
        "seconds": round(samples[-1].time - samples[0].time, 1),
        "curves": {name: [[s.groups, round(s.mib[name], 1)] for s in samples] for name in WATCHED},
    }
    return Report(settings, {name: figures(samples, name) for name in WATCHED}, _rates(samples), READING)


READING = (
    "MiB resident by share of the groups, all processes of a service together; growth after the first fifth, for each "
    "10,000 groups. CPU-ms is what a group costs the service, batches, policy versions and checkpoints included."
)


async def _watched(stack: SimulatedStack, spec: RunSpec, every: float) -> list[Sample]:
    """Samples from the first issued group to the end of the run, which is audited."""
    running = asyncio.create_task(stack.run(spec, RUN_SECONDS))
    samples: list[Sample] = []
    try:
        while not running.done():
            await asyncio.wait([running], timeout=every)
            issued = await stack.issued()
            if issued and (not samples or issued > samples[-1].groups):
                samples.append(_look(stack, issued))
    finally:
        running.cancel()
    await running
    return samples


def _look(stack: SimulatedStack, groups: int) -> Sample:
    sessions = {name: os.getsid(stack.pids[name]) for name in WATCHED}
    mib, cpu = session_rss_mib(), session_cpu_seconds()
    return Sample(
        time.time(),
        groups,
        {name: mib.get(session, 0.0) for name, session in sessions.items()},
        {name: cpu.get(session, 0.0) for name, session in sessions.items()},
    )


def figures(samples: Sequence[Sample], name: str) -> dict[str, Figure]:
    """A service's row: memory at the SHARES of the run, its growth, and what a group costs."""
    first, last = samples[0], samples[-1]
    at = {f"MiB at {share:.0%}": _nearest(samples, share * last.groups).mib[name] for share in SHARES}
    settled = [sample for sample in samples if sample.groups >= SETTLED * last.groups]
    slope = statistics.linear_regression([s.groups for s in settled], [s.mib[name] for s in settled]).slope
    cost = 1000 * (last.cpu[name] - first.cpu[name]) / (last.groups - first.groups)
    return {**at, "growth, MiB / 10,000": 1e4 * slope, "CPU-ms": cost}


def _nearest(samples: Sequence[Sample], groups: float) -> Sample:
    return min(samples, key=lambda sample: abs(sample.groups - groups))


def _rates(samples: Sequence[Sample]) -> dict[str, Figure]:
    first, last = samples[0], samples[-1]
    groups = last.groups - first.groups
    used = sum(last.cpu[name] - first.cpu[name] for name in WATCHED)
    return {
        "groups a second": groups / (last.time - first.time),
        "groups a CPU-second, all services": groups / used,
        "cores in use": used / (last.time - first.time),
    }


def _spec(groups: int, batch: int) -> RunSpec:
    """The tiny model's additions; so many steps that about `groups` groups are issued."""
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["rollout"] |= {"group_size": GROUP_SIZE}
    fields["asynchrony"] |= {"max_staleness": STALENESS}
    fields["trainer"] |= {"prompts_per_step": batch, "total_steps": max(2, round(groups * KEEP_RATE / batch))}
    fields["checkpoint"] |= {"interval": CHECKPOINT_INTERVAL}
    return parse_run_spec(fields)


if __name__ == "__main__":
    main()
