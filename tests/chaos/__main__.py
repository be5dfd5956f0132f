"""`make chaos`: random schedules in memory, then storms, each audited, and the weights of the real ones replayed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.storm import ROOT, Outcome, Storm, weather_the
from tests.coordinator.bounds.test_bounds import play

REAL_PAUSE, SIMULATED_PAUSE = 5.0, 1.5


def main() -> int:
    """0 when every run came through clean. Raises: AssertionError: a schedule broke a bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--real", type=int, default=2, help="runs with the real engine and trainer")
    parser.add_argument("--ranks", type=int, default=1, help="of the real trainer")
    parser.add_argument("--simulated", type=int, default=2, help="runs with simulated ones")
    parser.add_argument("--kills", type=int, default=60, help="in each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=2000, help="of tests/coordinator/bounds, others each time")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "chaos")
    chosen = parser.parse_args()
    os.chdir(ROOT)  # the paths in run files start here
    if chosen.schedules:
        play(chosen.schedules)
        print(f"{chosen.schedules} random schedules kept every bound", flush=True)
    output = chosen.output.absolute()
    real = [Storm(chosen.kills, chosen.seed + i, False, REAL_PAUSE, chosen.ranks) for i in range(chosen.real)]
    others = range(chosen.real, chosen.real + chosen.simulated)
    storms = real + [Storm(chosen.kills, chosen.seed + i, True, SIMULATED_PAUSE) for i in others]
    outcomes = [_one(storm, output) for storm in storms]
    killed = sum(outcome.killed.total() for outcome in outcomes)
    broken = [outcome for outcome in outcomes if not outcome.clean]
    print(f"{killed} kills in {len(outcomes)} runs; {len(broken)} runs with a broken invariant")
    return 1 if broken else 0


def _one(storm: Storm, output: Path) -> Outcome:
    name = f"{'simulated' if storm.simulated else 'real'}-{storm.seed}"
    outcome = asyncio.run(weather_the(storm, output / name))
    (output / f"{name}.json").write_text(json.dumps(summary(outcome), indent=2) + "\n", encoding="utf-8")
    print(f"{name}: {json.dumps(summary(outcome))}", flush=True)
    return outcome


def summary(outcome: Outcome) -> dict[str, Any]:
    """What the results page quotes."""
    report = outcome.report
    assert report is not None
    counts = ("issued", "trained", "lost", "trained_twice", "staleness_violations", "capacity_violations")
    return {
        "storm": asdict(outcome.storm),
        "kills": outcome.killed.total(),
        "killed": dict(sorted(outcome.killed.items())),
        "deleted_redis_files": outcome.deleted_redis_files,
        "seconds": round(outcome.seconds),
        "steps": report.training_steps,
        "lineages": report.lineages,
        **{name: getattr(report, name) for name in counts},
        "several_attempts": report.groups_with_several_attempts,
        "orphaned_rollouts": report.rollouts_orphaned,
        "staleness": report.staleness_histogram,
        "replayed": outcome.replayed,
        "findings": [f"{finding.kind}: {finding.detail}" for finding in report.findings],
    }


if __name__ == "__main__":
    sys.exit(main())
