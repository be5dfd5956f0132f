"""Memory: what each service holds while 100,000 groups of one run go through it, and what a group costs it.

Coordinator, rollout worker, reward, NATS and Valkey are the real ones; engine and trainer are simulated and take next
to no modelled time, so that the run is as fast as the processors allow. Half of the groups are kept. Every few seconds
the resident memory of each service, all its processes together, is noted beside the number of groups issued. Memory
goes up and down with garbage collectors: it is flat if the least that was held late in the run is the least that was
held early. At the end the run is audited.
"""

from __future__ import annotations

import argparse
import asyncio
import os
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
EARLY, LATE = (0.2, 0.4), (0.8, 1.0)
"""Shares of the run's groups between which memory is compared. Before, services still load what they need, and fill
what they keep for some minutes anyhow."""


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
    "MiB resident, all processes of a service together: the least in the second and in the last fifth of the groups, "
    "and the most at any time. CPU-ms is what a group costs the service, with batches, versions and checkpoints."
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
    """A service's row: the memory that it held early, late and at most, and what a group costs it."""
    first, last = samples[0], samples[-1]
    early, late = _least(samples, name, EARLY), _least(samples, name, LATE)
    cost = 1000 * (last.cpu[name] - first.cpu[name]) / (last.groups - first.groups)
    return {
        "MiB early": early,
        "MiB late": late,
        "late / early": late / early,
        "MiB at most": max(sample.mib[name] for sample in samples),
        "CPU-ms": cost,
    }


def _least(samples: Sequence[Sample], name: str, between: tuple[float, float]) -> float:
    low, high = (share * samples[-1].groups for share in between)
    return min((s.mib[name] for s in samples if low <= s.groups <= high), default=samples[-1].mib[name])


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
