"""Draws a dashboard with matplotlib: the panels where Grafana would put them, each from its own queries."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitoring.dashboard_file import DashboardOnFile, PanelOnFile, Variables
from monitoring.prometheus import Prometheus

COLUMNS = 24
INCHES_A_COLUMN, INCHES_A_ROW = 0.75, 0.36
GAP = 0.35
"""Space around a panel, in columns and rows of the grid."""
MOST_IN_LEGEND = 12
LETTERS_A_LINE = 72
"""Of the text panel's second column."""
UNITS = {"percentunit": ("%", 100.0), "s": ("s", 1.0), "bytes": ("MiB", 2.0**-20), "Bps": ("MiB/s", 2.0**-20)}
"""How Grafana's units are shown here, and by what values are multiplied for it."""
NO_UNIT = ("", 1.0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """From when to when the queries are asked, Unix seconds, and how often."""

    start: float
    end: float
    step: float


@dataclass(frozen=True, slots=True)
class Line:
    """One named series: seconds since the start, and values in the panel's unit."""

    name: str
    seconds: list[float]
    values: list[float]


class Picture:
    """One dashboard, drawn from what a Prometheus holds."""

    def __init__(self, prometheus: Prometheus, variables: Variables, stretch: Stretch) -> None:
        self._prometheus, self._variables, self._stretch = prometheus, variables, stretch

    def draw(self, dashboard: DashboardOnFile, caption: str, file: Path) -> None:
        """Write the picture as a PNG."""
        import matplotlib

        matplotlib.use("Agg")  # no display is needed, or looked for
        from matplotlib import pyplot

        rows = max(top + height for _, top, _, height in (panel.box for panel in dashboard.panels)) + 2
        figure = pyplot.figure(figsize=(COLUMNS * INCHES_A_COLUMN, rows * INCHES_A_ROW), facecolor="white")
        figure.text(0.01, 1 - 0.9 / rows, f"{dashboard.title}   ", fontsize=15, fontweight="bold", va="center")
        figure.text(0.99, 1 - 0.9 / rows, caption, fontsize=8, color="gray", ha="right", va="center")
        for panel in dashboard.panels:
            left, top, width, height = panel.box
            if panel.kind == "row":
                figure.text(0.01, 1 - (top + 2.5) / rows, panel.title, fontsize=12, fontweight="bold", va="center")
                continue
            box = (
                (left + 2 * GAP) / COLUMNS,
                1 - (top + 2 + height - 3 * GAP) / rows,
                (width - 3 * GAP) / COLUMNS,
                (height - 6 * GAP) / rows,
            )
            self._panel(figure.add_axes(box), panel)
        figure.savefig(file, dpi=80)
        pyplot.close(figure)

    def _panel(self, axis: Any, panel: PanelOnFile) -> None:
        painters: dict[str, Callable[[Any, PanelOnFile], None]] = {
            "timeseries": self._timeseries,
            "heatmap": self._heatmap,
            "stat": self._stat,
            "state-timeline": self._states,
            "text": self._text,
        }
        unit, _ = UNITS.get(panel.unit, NO_UNIT)
        axis.set_title(panel.title + (f", {unit}" if unit else ""), fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        painters[panel.kind](axis, panel)

    def _lines(self, panel: PanelOnFile) -> list[Line]:
        _, scale = UNITS.get(panel.unit, NO_UNIT)
        found = []
        for query in panel.queries:
            expr = self._variables.fill(query.expr)
            stretch = self._stretch
            for series in self._prometheus.query_range(expr, stretch.start, stretch.end, stretch.step):
                seconds = [time - stretch.start for time, _ in series.points]
                values = [value * scale for _, value in series.points]
                found.append(Line(query.name(series.labels), seconds, values))
        return _without_run(found)

    def _timeseries(self, axis: Any, panel: PanelOnFile) -> None:
        lines = self._lines(panel)
        draw = _stack if panel.stacked else _plot
        draw(axis, lines)
        if panel.limit is not None:
            _, scale = UNITS.get(panel.unit, NO_UNIT)
            axis.axhline(panel.limit * scale, color="red", linestyle="--", linewidth=0.8)
        axis.set_xlim(0, self._stretch.end - self._stretch.start)
        axis.grid(alpha=0.3)
        if lines:
            axis.legend(*(part[:MOST_IN_LEGEND] for part in axis.get_legend_handles_labels()), fontsize=6, loc="best")
        else:
            _say(axis, "no data in this run")

    def _heatmap(self, axis: Any, panel: PanelOnFile) -> None:
        lines = sorted(self._lines(panel), key=lambda line: float(line.name))
        below = [0.0] * max((len(line.values) for line in lines), default=0)
        cells = []
        for line in lines:  # a bucket counts all that is smaller too
            cells.append([value - lower for value, lower in zip(line.values, below, strict=True)])
            below = line.values
        if cells:
            extent = (0, self._stretch.end - self._stretch.start, -0.5, len(cells) - 0.5)
            axis.imshow(cells, aspect="auto", origin="lower", cmap="Oranges", extent=extent, interpolation="nearest")
            axis.set_yticks(range(len(lines)), [f"≤ {line.name}" for line in lines], fontsize=6)

    def _stat(self, axis: Any, panel: PanelOnFile) -> None:
        names_only = panel.fields["options"]["textMode"] == "name"
        lines = [line for line in self._lines(panel) if line.values]
        newest = max((line.seconds[-1] for line in lines), default=0.0)
        texts = [line.name if names_only else f"{line.values[-1]:.4g}" for line in lines if line.seconds[-1] == newest]
        longest = max(map(len, texts), default=20)
        _say(axis, "\n".join(texts) or "no data in this run", size=min(16, 60 * panel.box[2] / longest))

    def _states(self, axis: Any, panel: PanelOnFile) -> None:
        lines = self._lines(panel)
        for i, line in enumerate(lines):
            on = [second for second, value in zip(line.seconds, line.values, strict=True) if value]
            axis.broken_barh([(second, self._stretch.step) for second in on], (i - 0.4, 0.8), color=f"C{i}")
        axis.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=7)
        axis.set_ylim(-0.5, len(lines) - 0.5)  # also those that were never on
        axis.set_xlim(0, self._stretch.end - self._stretch.start)

    def _text(self, axis: Any, panel: PanelOnFile) -> None:
        rows = [line.strip("| ").split(" | ") for line in panel.fields["options"]["content"].splitlines()]
        cells = [[cell.replace("`", "") for cell in row] for row in rows if "---" not in row[0]]
        axis.axis("off")
        wrapped = [(first, textwrap.wrap(second, LETTERS_A_LINE)) for first, second in cells]
        height = 1 / sum(len(lines) for _, lines in wrapped)
        top = 1.0
        for i, (first, lines) in enumerate(wrapped):
            weight = "bold" if i == 0 else "normal"
            axis.text(0.0, top, first, fontsize=7, weight=weight, va="top")
            axis.text(0.2, top, "\n".join(lines), fontsize=6, weight=weight, va="top")
            top -= height * len(lines)


def _without_run(lines: list[Line]) -> list[Line]:
    """Names without their run, which is the same everywhere when only one was scraped."""
    if len({line.name.partition(" · ")[2] for line in lines} - {""}) > 1:
        return lines
    return [Line(line.name.partition(" · ")[0], line.seconds, line.values) for line in lines]


def _plot(axis: Any, lines: list[Line]) -> None:
    for line in lines:
        marker = "." if len(line.values) < 3 else ""  # a line of one point would not be seen
        axis.plot(line.seconds, line.values, label=line.name, linewidth=1.2, marker=marker)
    values = [value for line in lines for value in line.values if math.isfinite(value)]
    top = 1.15 * max([*values, 0.0]) or 1.0
    axis.set_ylim(min([-0.03 * top, *values]), top)  # a line at 0 is seen above the frame


def _stack(axis: Any, lines: list[Line]) -> None:
    """Areas on top of one another; a series counts as 0 where it has no value."""
    times = sorted({second for line in lines for second in line.seconds})
    known = [dict(zip(line.seconds, line.values, strict=True)) for line in lines]
    if times:
        values = [[by_time.get(t, 0.0) for t in times] for by_time in known]
        axis.stackplot(times, values, labels=[line.name for line in lines], alpha=0.7)


def _say(axis: Any, text: str, size: float = 8) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", fontsize=size)
