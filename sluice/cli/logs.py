"""`sluice logs`: what the processes of a local stack have said, merged in the order of time."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from sluice.errors import ConfigError
from sluice.local.log_files import LogReader, find_logs
from sluice.local.log_lines import LEVELS, LogLine
from sluice.local.state import running_stacks

POLL_SECONDS = 0.25
COLORS = {"debug": "bright_black", "info": "green", "warning": "yellow", "error": "red", "critical": "red"}
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
SAID_ALREADY = ("service", "run", "worker", "coordinator", "exception")
"""Fields that a line for people leaves out, because its beginning says so or a line of their own does."""

Run = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Only lines about this run; default: all lines.", show_default=False),
]
Stack = Annotated[str | None, typer.Option("--stack", help="Name of the local stack, running or not.")]
Services = Annotated[
    list[str], typer.Option("--service", help="Only this service, or this process (rollout, rollout-0); may repeat.")
]
Group = Annotated[int | None, typer.Option("--group", min=0, help="Only lines about this group.")]
Level = Annotated[str, typer.Option("--level", help=f"Lowest level: {', '.join(LEVELS)}.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="AGE|TIME", help="Only what is not older: 90s, 10m, 2h, 1d, or a time.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the stack ends, or Ctrl-C.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines to show."""

    run: str | None
    services: frozenset[str]
    group: int | None
    level: int
    since: datetime | None

    def __str__(self) -> str:
        """As the options that say so."""
        said = [f"run {self.run}"] if self.run else []
        said += [f"--group {self.group}"] if self.group is not None else []
        said += [f"--service {name}" for name in sorted(self.services)]
        said += [f"--level {LEVELS[self.level]}"] if self.level else []
        said += [f"--since {self.since:%Y-%m-%dT%H:%M:%SZ}"] if self.since else []
        return ", ".join(said)

    def includes(self, line: LogLine) -> bool:
        return (
            (self.run is None or line.run == self.run)
            and (self.group is None or line.is_about(self.group))
            and (not self.services or not self.services.isdisjoint(names_of(line.process)))
            and (line.level not in LEVELS or LEVELS.index(line.level) >= self.level)
            and (self.since is None or line.at >= self.since)
        )


def logs(  # noqa: PLR0913, PLR0917  # one parameter for each flag
    run: Run = None,
    stack: Stack = None,
    services: Services = [],  # noqa: B006  # typer reads the default, nobody changes it
    group: Group = None,
    level: Level = "debug",
    since: Since = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Show the logs of a local stack in the order of time, also after it has ended."""
    if level not in LEVELS:
        raise ConfigError(f"--level {level}: must be one of {', '.join(LEVELS)}")
    oldest = moment(since, datetime.now(UTC)) if since else None
    wanted = Wanted(run, frozenset(services), group, LEVELS.index(level), oldest)
    folder = find_logs(stack, run)
    reader = LogReader(folder)
    _check_services(wanted.services, reader.processes)
    write = json_of if as_json else text_of
    some = False
    try:
        for line in _follow(reader, folder) if follow else reader.read():
            if wanted.includes(line):
                typer.echo(write(line))
                some = True
        if not some:
            typer.echo(f"no line in {folder} matches {wanted}".removesuffix(" matches "), err=True)
    except BrokenPipeError:  # `| head` has what it wanted; closing the output would fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def moment(text: str, now: datetime) -> datetime:
    """The time that an age or an ISO time names; one without a zone is local.

    Raises:
        ConfigError: it is neither.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now - timedelta(**{UNITS[match[2]]: float(match[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ConfigError(
            f"--since {text}: write an age (90s, 10m, 2h, 1d) or a time such as 2026-01-31T12:00"
        ) from None


def names_of(process: str) -> set[str]:
    """What a process is called: rollout-0 is also one of rollout."""
    return {process, re.sub(r"-\d+$", "", process)}


def json_of(line: LogLine) -> str:
    first = {"timestamp": line.at.isoformat(), "level": line.level, "process": line.process, "event": line.event}
    return json.dumps({**first, **line.fields}, ensure_ascii=False)


def text_of(line: LogLine) -> str:
    """One line for people, in local time, and below it the traceback if there is one."""
    stamp = typer.style(line.at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], dim=True)
    level = typer.style(f"{line.level:8}", fg=COLORS.get(line.level))
    shown = " ".join(f"{name}={_value(value)}" for name, value in line.fields.items() if name not in SAID_ALREADY)
    text = f"{stamp} {level} {line.process:12} {typer.style(line.event, bold=True)} {shown}".rstrip()
    traceback = line.fields.get("exception")
    return f"{text}\n{traceback}" if traceback else text


def _value(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)


def _follow(reader: LogReader, folder: Path) -> Iterator[LogLine]:
    """What is there, then what comes, until the stack has ended and all it said is read."""
    while True:
        runs = any(state.name == folder.parent.name for state in running_stacks())
        yield from reader.read()
        if not runs:
            return
        time.sleep(POLL_SECONDS)


def _check_services(wanted: frozenset[str], processes: list[str]) -> None:
    known = {name for process in processes for name in names_of(process)}
    unknown = sorted(wanted - known)
    if unknown:
        raise ConfigError(f"--service {unknown[0]}: has no log here; there are: {', '.join(sorted(known))}")
