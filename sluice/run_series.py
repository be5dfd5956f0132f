"""Metrics labelled by run, in processes that outlive their runs: nothing stale is shown, and nothing piles up."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""From a group of a tiny model to a training step of a large one."""
STALENESS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384, 20480, 32768)
KEPT_RUNS = 8
"""Runs whose counters stay after their end, so that the last increments are scraped."""


class RunSeries:
    """Makes metrics whose first label is `run`.

    When a run has ended here, its gauges go at once: they would tell of a state that nobody looks after any more. Its
    counters, its histograms and what is called final stay true, so they stay, until KEPT_RUNS other runs have ended
    after it.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._sums: list[Counter | Gauge | Histogram] = []
        """What stays after the end, while the run is among the last KEPT_RUNS."""
        self._ended: deque[str] = deque()

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(name, text, ("run", *labels), registry=self._registry)
        self._sums.append(counter)
        return counter

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(name, text, ("run", *labels), registry=self._registry)
        self._gauges.append(gauge)
        return gauge

    def final_gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """One whose last value stays true after the run's end; whoever sets it takes it away where it would not."""
        gauge = Gauge(name, text, ("run", *labels), registry=self._registry)
        self._sums.append(gauge)
        return gauge

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = SECONDS) -> Histogram:
        histogram = Histogram(name, text, ("run", *labels), buckets=buckets, registry=self._registry)
        self._sums.append(histogram)
        return histogram

    def begin(self, run_id: str) -> None:
        """This process serves the run from now on, perhaps once more."""
        if run_id in self._ended:
            self._ended.remove(run_id)

    def end(self, run_id: str) -> None:
        """This process serves the run no longer."""
        _forget(self._gauges, run_id)
        if run_id not in self._ended:
            self._ended.append(run_id)
        while len(self._ended) > KEPT_RUNS:
            _forget(self._sums, self._ended.popleft())


def watch_disk(free: Gauge, size: Gauge, folder: Path) -> None:
    """Have two gauges tell, whenever they are read, of the file system that `folder` is or will be on."""
    folder = folder.absolute()
    free.set_function(lambda: shutil.disk_usage(_existing(folder)).free)
    size.set_function(lambda: shutil.disk_usage(_existing(folder)).total)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _forget(metrics: Sequence[Counter | Gauge | Histogram], run_id: str) -> None:
    for metric in metrics:
        metric.remove_by_labels({"run": run_id})
