"""From what a run has stored to the split of its training steps: pure functions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.harness import Figure, Spread
from bench.recorded import Recorded

PHASES = ("wait", "fetch", "train", "publish")
"""Of the trainer, in this order."""
Row = dict[str, Figure]
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """At `time` (seconds since the epoch): CPU-seconds so far, of the whole machine and of each process."""

    time: float
    machine: float
    used: Mapping[tuple[str, int], float]
    """(command, pid) -> CPU-seconds."""


def split(recorded: Recorded, samples: Sequence[Sample], steps: int) -> dict[str, Row]:
    """The rows of the report, over training steps 1 to `steps`: between policy versions 1 and `steps` + 1."""
    window = (recorded.published[1], recorded.published[steps + 1])
    lengths, phases = _trainer(recorded, steps)
    mean = statistics.fmean(lengths)
    seconds = {"step": lengths, **phases, **_beside(recorded, window)}
    rows = {name: _row(found, mean) for name, found in seconds.items() if found}
    checkpoints = [s["seconds"]["checkpoint"] for s in recorded.steps if "checkpoint" in s["seconds"]]
    if checkpoints:
        rows["a checkpoint, apart"] = {"seconds": Spread.of(checkpoints), "mean": statistics.fmean(checkpoints)}
    return rows | _groups(recorded, window) | processes(samples, window, len(lengths))


def _row(seconds: Sequence[float], step: float) -> Row:
    spread = Spread.of(seconds)
    return {"seconds": spread, "mean": spread.mean, "share": spread.mean / step}


def _trainer(recorded: Recorded, steps: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of each counted step, and of the phases that make it up."""
    counted = [step["seconds"] for step in recorded.steps[1 : steps + 1]]
    lengths = [seconds["total"] for seconds in counted]
    phases = {f"trainer: {name}": [seconds[name] for seconds in counted] for name in PHASES}
    rest = [length - sum(times) for length, *times in zip(lengths, *phases.values(), strict=True)]
    return lengths, {**phases, "trainer: the rest": rest}


def _beside(recorded: Recorded, window: Window) -> dict[str, list[float]]:
    """What the other services do meanwhile; the first two in each step, so that they compare with its length."""
    borders = sorted(time for time in recorded.published.values() if window[0] <= time <= window[1])
    steps = list(itertools.pairwise(borders))
    groups = [(time - group.reward_seconds, time, group) for _, time, group in recorded.groups]
    generation = [(judged - group.generate_seconds, judged) for judged, _, group in groups]
    reward = [(judged, time) for judged, time, _ in groups]
    stored = {sequence: time for sequence, time, _ in recorded.groups}
    issued = [time for time, _ in recorded.issues]
    return {
        "worker: any group in generation": [covered(generation, step) for step in steps],
        "worker: any group in reward": [covered(reward, step) for step in steps],
        "worker: weight sync": [e["seconds"] for time, e in recorded.applied if window[0] <= time < window[1]],
        "coordinator: last group to batch": [
            time - stored[batch.groups_seen] for time, batch in recorded.batches if window[0] <= time < window[1]
        ],
        "coordinator: version to prompts": [
            min(later) - time for time in borders[:-1] if (later := [t for t in issued if t > time])
        ],
    }


def _groups(recorded: Recorded, window: Window) -> dict[str, Row]:
    """How long the groups took that were stored within the window; several are on their way at once."""
    counted = [group for _, time, group in recorded.groups if window[0] <= time < window[1]]
    generate = Spread.of(group.generate_seconds for group in counted)
    reward = Spread.of(group.reward_seconds for group in counted)
    return {
        "one group: generate": {"seconds": generate, "mean": generate.mean},
        "one group: reward": {"seconds": reward, "mean": reward.mean},
    }


def covered(intervals: Iterable[Window], window: Window) -> float:
    """Seconds of `window` in which at least one of the intervals lies."""
    total, reached = 0.0, window[0]
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, window[1])  # noqa: PLW2901  # cut to what is not yet counted
        if end > begin:
            total, reached = total + end - begin, end
    return total


def processes(samples: Sequence[Sample], window: Window, steps: int) -> dict[str, Row]:
    """CPU-seconds a step and cores in use of each command within `window`; whatever else ran here is one row."""
    used: dict[str, float] = {}
    for command, pid in dict.fromkeys(key for sample in samples for key in sample.used):
        points = [(s.time, s.used[command, pid]) for s in samples if (command, pid) in s.used]
        used[command] = used.get(command, 0.0) + _between(points, window)
    everything = _between([(s.time, s.machine) for s in samples], window)
    used["everything else here"] = max(everything - sum(used.values()), 0.0)
    length = window[1] - window[0]
    return {
        f"CPU: {command}": {"CPU-s / step": seconds / steps, "cores": seconds / length}
        for command, seconds in sorted(used.items(), key=lambda item: -item[1])
    }


def _between(points: Sequence[tuple[float, float]], window: Window) -> float:
    """How much a count that only grows has grown within `window`, with straight lines between its points."""
    return _at(points, window[1]) - _at(points, window[0])


def _at(points: Sequence[tuple[float, float]], time: float) -> float:
    if time < points[0][0]:
        return 0.0
    for (t0, c0), (t1, c1) in itertools.pairwise(points):
        if time < t1:
            return c0 + (c1 - c0) * (time - t0) / (t1 - t0)
    return points[-1][1]
