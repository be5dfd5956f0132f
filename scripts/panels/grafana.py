"""From our panels to Grafana's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    text,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as enums
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from panels.panel import GRID_WIDTH, Kind, Page, Panel, Query, Section, here

DATA_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "sluice"
SCHEMA_VERSION = 39
"""Of Grafana 10 and newer; older files are migrated when they are read, newer ones are refused."""

GraphicalPanel = timeseries.Panel | heatmap.Panel | stat.Panel | statetimeline.Panel | text.Panel


def to_json(page: Page) -> str:
    """The text of a dashboard's file: the same page gives the same bytes."""
    built = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.says)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(_data_source_variable())
        .with_variable(_namespace_variable())
        .with_variable(_run_variable())
        .with_variable(_window_variable())
        .link(_links())
    )
    for panel in place(page.sections):
        built = built.with_row(panel) if isinstance(panel, dashboard.Row) else built.with_panel(panel)
    fields = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    fields["schemaVersion"] = SCHEMA_VERSION
    return json.dumps(fields, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def place(sections: tuple[Section, ...]) -> Iterator[dashboard.Row | GraphicalPanel]:
    """Number the panels and lay them out line by line.

    Raises:
        ValueError: a panel is wider than the grid.
    """
    number = y = 0
    for section in sections:
        number += 1
        yield dashboard.Row(section.title).id(number).grid_pos(models.GridPos(x=0, y=y, w=GRID_WIDTH, h=1))
        y += 1
        x = line_height = 0
        for panel in section.panels:
            if panel.width > GRID_WIDTH:
                raise ValueError(f"panel {panel.title!r} has width {panel.width}; the grid has {GRID_WIDTH} columns")
            if x + panel.width > GRID_WIDTH:
                x, y, line_height = 0, y + line_height, 0
            number += 1
            position = models.GridPos(x=x, y=y, w=panel.width, h=panel.height)
            yield _panel(panel).id(number).grid_pos(position)
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height


def _panel(panel: Panel) -> GraphicalPanel:
    makers: dict[Kind, Callable[[Panel], GraphicalPanel]] = {
        Kind.LINES: _lines,
        Kind.STACK: _stack,
        Kind.HEATMAP: _heatmap,
        Kind.NUMBERS: _numbers,
        Kind.NAMES: _names,
        Kind.STATES: _states,
        Kind.TEXT: _text,
    }
    built = makers[panel.kind](panel)
    built = built.title(panel.title).description(panel.says).datasource(DATA_SOURCE).unit(panel.unit)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(_target(query, letter, panel.kind))
    return built


def _target(query: Query, letter: str, kind: Kind) -> Builder[Any]:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(DATA_SOURCE)
    if kind is Kind.HEATMAP:
        target = target.format(PromQueryFormat.HEATMAP)
    return target.instant() if kind in (Kind.NUMBERS, Kind.NAMES) else target.range()


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(enums.LegendDisplayMode.LIST)
    built = (
        timeseries.Panel()
        .legend(legend.placement(enums.LegendPlacement.BOTTOM).show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(enums.TooltipDisplayMode.MULTI).sort(enums.SortOrder.DESCENDING))
        .line_width(1)
        .show_points(enums.VisibilityMode.NEVER)
        .axis_soft_min(0)
    )
    if panel.maximum is not None:
        built = built.max(panel.maximum)
    if panel.limit is None:
        return built
    style = common.GraphThresholdsStyleConfig().mode(enums.GraphTresholdsStyleMode.DASHED)
    return built.thresholds(_limit(panel.limit)).thresholds_style(style)


def _stack(panel: Panel) -> timeseries.Panel:
    stacking = common.StackingConfig().mode(enums.StackingMode.NORMAL)
    return _lines(panel).stacking(stacking).fill_opacity(40)


def _heatmap(panel: Panel) -> heatmap.Panel:
    colors = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").fill("dark-orange")
    return (
        heatmap.Panel()
        .calculate(False)
        .color(colors.scale(HeatmapColorScale.EXPONENTIAL).exponent(0.5).steps(64))
        .show_tooltip()
        .show_y_histogram()
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
    )


def _numbers(panel: Panel) -> stat.Panel:
    newest = common.ReduceDataOptions().calcs(["lastNotNull"])
    built = stat.Panel().graph_mode(enums.BigValueGraphMode.NONE).color_mode(enums.BigValueColorMode.VALUE)
    built = built.reduce_options(newest)
    return built if panel.limit is None else built.thresholds(_limit(panel.limit))


def _names(panel: Panel) -> stat.Panel:
    return _numbers(panel).text_mode(enums.BigValueTextMode.NAME)


def _states(panel: Panel) -> statetimeline.Panel:
    # Without colours of its own Grafana gives 0 one too, and every line looks as if it were the one that counts.
    shown = {
        "0": models.ValueMappingResult(text="no", color="transparent", index=0),
        "1": models.ValueMappingResult(text="yes", color="orange", index=1),
    }
    built = statetimeline.Panel().merge_values(True).show_value(enums.VisibilityMode.NEVER).row_height(0.8)
    return built.mappings([models.ValueMap(options=shown)])


def _text(panel: Panel) -> text.Panel:
    return text.Panel().mode(TextMode.MARKDOWN).content(panel.text)


def _limit(value: float) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green"), models.Threshold(value=value, color="red")]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _data_source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _namespace_variable() -> dashboard.QueryVariable:
    # All is a pattern and no list: where there are no namespaces it still matches.
    return _chosen("namespace", "Namespace", "label_values(sluice_groups_issued_total, namespace)").all_value(".*")


def _run_variable() -> dashboard.QueryVariable:
    return _chosen("run", "Run", f"label_values({here('sluice_groups_issued_total')}, run)")


def _chosen(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """One or several values of a label; at first all of them."""
    everything = models.VariableOption(text="All", value="$__all")
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATA_SOURCE)
        .query({"query": query, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(everything)
    )


def _window_variable() -> dashboard.CustomVariable:
    # A step of a large model takes minutes: only people know over how many of them they want to average.
    return (
        dashboard.CustomVariable("window")
        .label("Averaged over")
        .values("1m,5m,15m,1h,6h")
        .current(models.VariableOption(text="5m", value="5m"))
    )


def _links() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Sluice").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).include_vars(True).keep_time(True)
