"""`sluice watch`: follow a run, as a live table on a terminal and line by line elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Protocol

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table

from sluice.cli.connection import At, connect, newest_run, wait_for
from sluice.cli.progress import COLUMNS, Progress, first_line
from sluice.client import RECONNECT_SECONDS, NoServerError, RunsClient
from sluice.errors import TransientError
from sluice.types import RunState
from sluice.views import EventView, RunView

STATUS_SECONDS = 1.0
QUIET_SECONDS = 30.0
"""Without news for this long, a line says who waits for whom."""
LAST_STEP_SECONDS = 3.0
"""Longest wait for the event of the last training step, once the run has ended."""
SHOWN_STEPS = 12
UNBROKEN_COLUMNS = 1000
AWAY = (TransientError, NoServerError)
"""What a try to ask a coordinator ends with that was there and may be back soon."""

WatchedRun = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="The run's id; default: the newest run.", show_default=False)
]


def watch(run: WatchedRun = None, at: At = None) -> None:
    """Follow a run until it ends. Leaving (Ctrl-C) does not stop the run."""

    async def work() -> int:
        async with connect(at) as client:
            status = await client.get(run or await newest_run(client))
            return await follow_to_end(client, status.id, status.total_steps)

    raise typer.Exit(wait_for(work()))


async def follow_to_end(client: RunsClient, run_id: str, total_steps: int) -> int:
    """Show the run until it has ended; the exit code. Whoever leaves before is told that the run goes on.

    Raises:
        ConfigError, TransientError: as `RunsClient`.
    """
    try:
        with view(total_steps) as screen:
            run = await follow(client, run_id, screen)
    except asyncio.CancelledError:
        advice = f"sluice watch {run_id} follows it again, sluice stop {run_id} ends it"
        print(f"{run_id} goes on; {advice}", file=sys.stderr)
        raise
    return 1 if run.state is RunState.FAILED else 0


class Screen(Protocol):
    """Where progress is shown."""

    progress: Progress

    def show(self, news: list[str]) -> None:
        """The progress has changed; `news` are the lines worth saying."""
        ...


@contextmanager
def view(total_steps: int) -> Iterator[Screen]:
    """A live table on a terminal, else plain lines."""
    console = Console(highlight=False)
    progress = Progress(total_steps)
    if not console.is_terminal:
        yield LineScreen(progress)
        return
    with Live(console=console, refresh_per_second=2, transient=False) as live:
        yield TableScreen(progress, live)


async def follow(client: RunsClient, run_id: str, screen: Screen) -> RunView:
    """Show the run until it has ended, also across restarts of the coordinator; the run then.

    Raises:
        ConfigError: as `RunsClient`.
        TransientError: the coordinator was away for RECONNECT_SECONDS.
    """
    events: asyncio.Queue[EventView] = asyncio.Queue()
    reader = asyncio.create_task(_read_events(client, run_id, events))
    try:
        while True:
            news: list[str] = []
            with contextlib.suppress(*AWAY):  # the event reader has the deadline for a coordinator away
                news += screen.progress.see_run(await client.get(run_id))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATUS_SECONDS):
                    while True:
                        screen.show(news + screen.progress.see_event(await events.get()))
                        news = []
            screen.show(news)
            if reader.done():
                reader.result()
            run = screen.progress.run
            if run and run.state.terminal and events.empty():
                await _show_last_steps(client, run, screen)
                return run
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _show_last_steps(client: RunsClient, run: RunView, screen: Screen) -> None:
    """A run ends with its last checkpoint, and the stream of events with it; the last step's event may come after."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_STEP_SECONDS):
            while True:
                with contextlib.suppress(*AWAY):
                    screen.show(screen.progress.see_steps(await client.steps(run.id)))
                if len(screen.progress.trainings) >= run.training_steps:
                    return
                await asyncio.sleep(0.2)


async def _read_events(client: RunsClient, run_id: str, events: asyncio.Queue[EventView]) -> None:
    def say() -> None:
        print(f"coordinator away, trying again for {RECONNECT_SECONDS:g} s", file=sys.stderr, flush=True)

    async for event in client.events(run_id, on_away=say):
        events.put_nowait(event)


class LineScreen:
    """One line for each piece of news, and after a silence one that says who waits for whom."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._clock = asyncio.get_running_loop().time
        self._said_at = self._clock()

    def show(self, news: list[str]) -> None:
        waits = self.progress.waits()
        if not news and waits and self._clock() - self._said_at > QUIET_SECONDS:
            news = [f"waits: {waits}"]
        for line in news:
            print(line, flush=True)
            self._said_at = self._clock()


class TableScreen:
    """The last steps as a table, above it the run's state, below it who waits for whom and what would help."""

    def __init__(self, progress: Progress, live: Live) -> None:
        self.progress, self._live = progress, live

    def show(self, news: list[str]) -> None:
        self._live.update(self._render())

    def _render(self) -> Group:
        run, progress = self.progress.run, self.progress
        console = self._live.console
        table = self._table(brief=False)
        if Measurement.get(console, console.options.update(max_width=UNBROKEN_COLUMNS), table).maximum > console.width:
            table = self._table(brief=True)
        lines = [_headline(run)] if run else []
        tail = [f"[dim]waits: {progress.waits()}[/]"] if progress.waits() else []
        if progress.bottleneck():
            tail.append(f"bottleneck: {progress.bottleneck()}")
        return Group(*lines, table, *progress.notes, *tail)

    def _table(self, brief: bool) -> Table:
        """The last steps; `brief` fits into 80 columns."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0) if brief else (0, 1))
        for title in COLUMNS:
            table.add_column(title, no_wrap=True)
        for step in sorted(self.progress.trainings)[-SHOWN_STEPS:]:
            table.add_row(*self.progress.cells(step, brief))
        return table


def _headline(run: RunView) -> str:
    c = run.counts
    reason = f" ({first_line(run.reason)})" if run.reason else ""
    version = run.policy_version or "no version yet"
    keep = "-" if c.keep_rate is None else f"{c.keep_rate:.0%}"
    return (
        f"[bold]{run.id}[/] {run.state}{reason}  step {run.training_steps}/{run.total_steps}  "
        f"{version}  issued {c.issued}  trained {c.trained}  live {c.live}  keep rate {keep}"
    )
