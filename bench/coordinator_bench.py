"""The coordinator's price: CPU for each group, with 1,000, 10,000 and 100,000 groups live.

The queue: the pure filter queue, from a group's arrival to the last decision that follows from it, group by group, at a
staleness bound of 3; the same groups go through it several times, and the least that each cost counts.

The process: a real coordinator on a real NATS server, that hears of each group, refills it, publishes its prompt, and
emits batches, at a bound of 15. What the whole process used is read before and after a window of 50 groups that are
stored at once, and divided by 50: p50 and p99 are over windows, not over single groups. Windows in which a batch is
emitted are told apart. What the process does once a second whatever comes (who is there, how the run stands) falls on
one window in about thirty: it is in p99, and not in p50. There are some hundred windows, after some that are not
counted, so that p99 is not the worst of them; that one is told beside it. "alone" is a group that comes by itself, the
median of ten means of twenty: decisions, records and prompts are not shared with others then.

Half of the groups are kept, in random order; a batch is the live groups over the bound and one; it is trained at once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.coordinator_side import GROUP_SIZE, STALENESS, coordination, percentile
from bench.harness import Figure, Report, run_benchmark
from bench.queue_side import least_queue_seconds

NAME = "coordinator"
LIVE: tuple[int, ...] = (1_000, 10_000, 100_000)
QUEUE_GROUP_SIZE, QUEUE_STALENESS = 8, 3
PLAYS = 4
"""Of the queue, the same each time: a group's cost is the least of its costs."""
WINDOW = 50
ALONE = 10, 20
"""Stretches of groups that come one by one, and groups in each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=float, default=0.15, help="groups that go through the process, in live groups")
    parser.add_argument("--at-least", type=int, default=20_000, help="groups that go through at least")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """The queue and the process, at each number of live groups."""
    sizes, turns, at_least = LIVE, arguments.turns, arguments.at_least
    if arguments.quick:
        sizes, turns, at_least = (200,), 1.0, 300
    figures: dict[str, Mapping[str, Figure]] = {}
    for live in sizes:
        seconds = least_queue_seconds(live, QUEUE_STALENESS, QUEUE_GROUP_SIZE, max(at_least, live), PLAYS)
        figures[f"queue, {live:,} live"] = _figures(seconds)
    for live in sizes:
        count = max(at_least, int(turns * live))
        figures[f"process, {live:,} live"] = await _process(live, count, arguments.output / "coordinator-stack")
    settings = {
        "turns": turns,
        "staleness": {"queue": QUEUE_STALENESS, "process": STALENESS},
        "group_size": {"queue": QUEUE_GROUP_SIZE, "process": GROUP_SIZE},
        "plays": PLAYS,
        "window": WINDOW,
    }
    smallest, largest = f"{sizes[0]:,} live", f"{sizes[-1]:,} live"
    ratios = {
        f"{side}, {largest} / {smallest}, p50": _float(figures[f"{side}, {largest}"]["p50 µs"])
        / _float(figures[f"{side}, {smallest}"]["p50 µs"])
        for side in ("queue", "process")
    }
    return Report(settings, figures, ratios, READING)


READING = (
    "CPU-µs a group; a ratio of 1 is flat. The queue's mean and longest have its batches in them. The process is seen "
    "in windows of 50 groups that come together, p99 and longest too; alone is one that comes by itself. What a batch "
    "adds, the prompts that follow it included, is told for each group in it."
)


async def _process(live: int, count: int, folder: Path) -> Mapping[str, Figure]:
    """Windows without a batch, and what a batch adds; small batches, of which every window has some, are in them."""
    batch_size = live // (STALENESS + 1)
    plain: list[float] = []
    with_batch: list[float] = []
    async with coordination(live, folder) as held:
        begun = held.batches
        for _ in range(count // WINDOW):
            before = held.batches
            seconds = await held.work(WINDOW)
            (with_batch if held.batches > before and batch_size > WINDOW else plain).append(seconds)
        batches = held.batches - begun
        stretches, length = ALONE
        alone = [statistics.fmean([await held.work(1) for _ in range(length)]) for _ in range(stretches)]
    usual = percentile(plain, 0.5)
    added = WINDOW * sum(seconds - usual for seconds in with_batch)
    return {
        **_figures(plain),
        "windows": float(len(plain)),
        "alone µs": 1e6 * percentile(alone, 0.5),
        "batches": float(batches),
        "batch µs": 1e6 * added / max(1, batches * batch_size),
    }


def _figures(seconds: Sequence[float]) -> dict[str, Figure]:
    return {
        "p50 µs": 1e6 * percentile(seconds, 0.5),
        "p99 µs": 1e6 * percentile(seconds, 0.99),
        "mean µs": 1e6 * statistics.fmean(seconds),
        "longest ms": 1e3 * max(seconds),
    }


def _float(figure: Figure) -> float:
    assert isinstance(figure, float)
    return figure


if __name__ == "__main__":
    main()
