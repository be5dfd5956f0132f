"""What `sluice eval` shows: progress on a terminal, and the table of results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:  # at run time only when needed: it brings pyarrow and the tokenizers
    from sluice.evaluation.samples import Sample
    from sluice.evaluation_views import EvaluationView, MetricView, SourceView

LINE_SECONDS = 30.0
"""Where standard error is no terminal, a line says how far it is this often."""
NARROWEST = 110
"""Columns that the table needs; where there are fewer its lines are wrapped, not cut."""
KINDS = ("avg", "pass", "cons", "best")


@contextmanager
def progress_screen(done: int, total: int) -> Iterator[Callable[[Sequence[Sample]], None]]:
    """Gives a function that is told of the samples that were stored."""
    console = Console(stderr=True, highlight=False)
    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("samples"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), rate)
    count = _Count(done, total)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("samples", total=total, completed=done, rate="")

        def show(samples: Sequence[Sample]) -> None:
            count.add(samples)
            bar.update(task, completed=count.done, rate=count.rate)
            if not console.is_terminal and count.line_is_due():
                print(f"{count.done} of {total} samples, {count.rate}", file=sys.stderr, flush=True)

        yield show


class _Count:
    """How far it is, and how fast."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self._total, self._tokens = done, total, 0
        self._began = self._line = time.monotonic()

    def add(self, samples: Sequence[Sample]) -> None:
        self.done += len(samples)
        self._tokens += sum(sample.tokens for sample in samples)

    @property
    def rate(self) -> str:
        return f"{self._tokens / max(1e-3, time.monotonic() - self._began):.0f} tokens/s"

    def line_is_due(self) -> bool:
        now = time.monotonic()
        if now - self._line < LINE_SECONDS:
            return False
        self._line = now
        return True


def show_results(view: EvaluationView, files: str) -> None:
    """The table by data source, and what a reader must know to read it right."""
    k = view.settings["samples"]
    table = Table(box=None, pad_edge=False, title=_title(view), title_justify="left", title_style="")
    for name in ("data source", "problems", "samples", "failed", *(f"{kind}@{k}" for kind in KINDS), "cut", "tokens"):
        table.add_column(name, justify="left" if name == "data source" else "right", no_wrap=True)
    for source in (*view.sources, *([view.all] if len(view.sources) > 1 else [])):
        table.add_row(*_row(source, k))
    console = Console(highlight=False)
    wide_enough = Console(highlight=False, width=max(console.width, NARROWEST))
    wide_enough.print(table)
    for line in [*_remarks(view), f"files: {files}"]:
        console.print(line, soft_wrap=True)


def _title(view: EvaluationView) -> str:
    s = view.settings
    return f"{view.model}: {s['samples']} samples a problem, T {s['temperature']:g}, top-p {s['top_p']:g}"


def _row(source: SourceView, k: int) -> list[str]:
    cells = [source.data_source, str(source.problems), str(source.samples), str(sum(source.failed.values()))]
    cells += [_cell(source.metrics.get(f"{kind}@{k}")) for kind in KINDS]
    cut = source.truncated / source.samples if source.samples else 0.0
    return [*cells, f"{cut:.0%}", "-" if source.tokens_mean is None else f"{source.tokens_mean:.0f}"]


def _cell(metric: MetricView | None) -> str:
    return "-" if metric is None else f"{metric.value:.3f}\n[dim]{metric.low:.3f}-{metric.high:.3f}[/]"


def _remarks(view: EvaluationView) -> Iterator[str]:
    if view.duplicates:
        yield (
            f"{view.duplicates} of {view.rows_read} rows are exact copies of a problem, which counts once: "
            f"{view.all.problems} problems, each with {view.settings['samples']} samples"
        )
    if view.all.avg_if_failed is not None:
        low, high = view.all.avg_if_failed
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(view.all.failed.items()))
        yield (
            f"[bold]failed checks[/] ({kinds}) are in no metric; were they all wrong avg would be {low:.3f}, all right "
            f"{high:.3f}"
        )
    if view.all.without_answer:
        yield f"{view.all.without_answer} responses have no answer that the verifier could find"
    yield "under each number: its 95 % interval over problems (bootstrap)"
