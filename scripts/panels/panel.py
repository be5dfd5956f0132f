"""What a dashboard is made of, before it becomes Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GRID_WIDTH = 24
"""Columns of Grafana's grid."""
NAMESPACE = 'namespace=~"$namespace"'
"""Matches the installations chosen at the top of the dashboard; outside Kubernetes nothing has the label, and all is
matched."""
RUN = 'run=~"$run"'
"""Matches the runs chosen at the top of the dashboard."""
RATE = "$__rate_interval"
"""The window of a rate: Grafana makes it long enough for the scrape interval and the zoom."""
WINDOW = "$window"
"""The window over what happens once a training step or less often; chosen at the top of the dashboard."""


class Kind(StrEnum):
    """How a panel shows its series."""

    LINES = "timeseries"
    STACK = "stacked timeseries"
    HEATMAP = "heatmap"
    NUMBERS = "stat"
    NAMES = "names"
    """The labels of the series are the message, not their values."""
    STATES = "state-timeline"
    """A line for each series, coloured while its value is 1."""
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the name of each series that it returns."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One question and its answer."""

    title: str
    says: str
    """What is shown and how to read it; a tooltip in Grafana."""
    queries: tuple[Query, ...] = ()
    kind: Kind = Kind.LINES
    unit: str = "short"
    """Grafana's name of the unit."""
    width: int = 8
    height: int = 7
    maximum: float | None = None
    limit: float | None = None
    """Where an alert begins: a dashed line."""
    text: str = ""
    """Markdown of a panel that only says something."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the panels under it, left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One dashboard."""

    uid: str
    title: str
    says: str
    sections: tuple[Section, ...]


def here(metric: str, *matchers: str) -> str:
    """A metric of the chosen installations, whichever runs it is about."""
    return f"{metric}{{{', '.join((NAMESPACE, *matchers))}}}"


def runs(metric: str, *matchers: str) -> str:
    """A metric of the chosen runs."""
    return here(metric, RUN, *matchers)


def rate(metric: str, *matchers: str, window: str = RATE) -> str:
    """How fast a counter of the chosen runs grows, a second."""
    return f"rate({runs(metric, *matchers)}[{window}])"


def total(expr: str, *by: str) -> str:
    """The sum over all replicas, for each run of each installation: with equal keys two may have a run of one id."""
    return f"sum by ({', '.join(('namespace', 'run', *by))}) ({expr})"


def share(part: str, whole: str) -> str:
    """One sum as a share of another; nothing while the whole stands still, since 0 / 0 says nothing."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str, *by: str) -> str:
    """A quantile of what a histogram of the chosen runs saw."""
    buckets = rate(f"{histogram}_bucket", window=WINDOW)
    return f"histogram_quantile({q}, {total(buckets, *by, 'le')})"


def mean(histogram: str, *by: str, only: str = "") -> str:
    """The mean of what a histogram of the chosen runs saw; `only` is one more matcher."""
    matchers = [only] if only else []
    sums, counts = (rate(f"{histogram}_{part}", *matchers, window=WINDOW) for part in ("sum", "count"))
    return share(total(sums, *by), total(counts, *by))
