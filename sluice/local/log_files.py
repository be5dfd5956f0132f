"""The log files of a stack: their names, their size, and their lines merged in the order of time.

A process has `NAME.log`. When that gets too long its content moves to `NAME.older.log`; when the stack starts again the
file becomes `NAME.previous.log`. So a process never has more than three files, each of a bounded size.
"""

from __future__ import annotations

import heapq
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from sluice.errors import ConfigError
from sluice.local.log_lines import LogLine, parse_line
from sluice.local.state import ARTIFACTS, running_stacks

MOST_LOG_BYTES = 32 << 20
_LOGS, _SUFFIX, _OLDER, _PREVIOUS = "logs", ".log", ".older.log", ".previous.log"


def log_file(folder: Path, process: str) -> Path:
    return folder / f"{process}{_SUFFIX}"


def set_aside(folder: Path, process: str) -> None:
    """Make room for a new start: the log of the start before stays beside the new one."""
    log = log_file(folder, process)
    (folder / f"{process}{_OLDER}").unlink(missing_ok=True)
    if log.exists():
        log.replace(folder / f"{process}{_PREVIOUS}")


def bound(folder: Path, process: str, most_bytes: int) -> None:
    """Move what a running process has written aside once it is too long.

    The process goes on writing into the same file, at its new end because it appends. What it writes between the copy
    and the cut, some microseconds, is lost.
    """
    log, older = log_file(folder, process), folder / f"{process}{_OLDER}"
    if not log.exists() or log.stat().st_size <= most_bytes:
        return
    try:
        shutil.copyfile(log, older)
    except OSError:  # on a full disk room counts for more than old lines
        older.unlink(missing_ok=True)
    os.truncate(log, 0)


def folders_with_logs(artifacts: Path = ARTIFACTS) -> dict[str, Path]:
    """Folders of logs by the name of their stack, whether it runs or not."""
    return {folder.parent.name: folder for folder in sorted(artifacts.glob(f"*/{_LOGS}")) if any(folder.iterdir())}


def find_logs(stack: str | None, run: str | None, artifacts: Path = ARTIFACTS) -> Path:
    """The folder with the logs of a stack, or of the one stack that has lines about `run`, or of the only one.

    Raises:
        ConfigError: there is none, or there are several.
    """
    folders = folders_with_logs(artifacts)
    names = ", ".join(folders) or "none"
    if stack is not None:
        if stack not in folders:
            raise ConfigError(f"--stack {stack}: there is no log of such a stack in {artifacts}/; there are: {names}")
        folders = {stack: folders[stack]}
    if run is not None:
        folders = {name: folder for name, folder in folders.items() if _mentions(folder, run)}
        if not folders:
            where = f"stack {stack}" if stack else f"{artifacts}/ (stacks: {names})"
            raise ConfigError(f"no log of {where} has a line about run {run}; `sluice runs` lists the runs")
    running = [s.name for s in running_stacks(artifacts) if s.name in folders]
    chosen = running if len(running) == 1 else list(folders)
    if len(chosen) > 1:
        raise ConfigError(f"several stacks have logs here ({', '.join(chosen)}); choose one with --stack")
    if not chosen:
        raise ConfigError(f"no stack has logs in {artifacts}/; start one with `sluice up RUN_FILE`")
    return folders[chosen[0]]


def _mentions(folder: Path, run: str) -> bool:
    needle = f'"run": "{run}"'.encode()
    return any(needle in file.read_bytes() for file in folder.glob(f"*{_SUFFIX}"))


class LogReader:
    """The lines of one folder. `read` gives what is there; called again, what has come since."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[str, _Tail] = {}

    @property
    def processes(self) -> list[str]:
        """Names of the processes that have a log."""
        names = {file.name.removesuffix(_SUFFIX) for file in self._folder.glob(f"*{_SUFFIX}")}
        return sorted({n.removesuffix(".older").removesuffix(".previous") for n in names})

    def read(self) -> Iterator[LogLine]:
        """New lines of all processes, in the order of time; those of one process stay in their own order."""
        for process in self.processes:
            if process not in self._tails:
                self._tails[process] = _Tail(self._folder, process)
        return heapq.merge(*(tail.lines() for tail in self._tails.values()), key=lambda line: line.at)


class _Tail:
    """One process: first its older files, then its log as far as it goes."""

    def __init__(self, folder: Path, process: str) -> None:
        self._folder, self._process = folder, process
        self._file: BinaryIO | None = None
        self._partial = b""
        self._last: LogLine | None = None
        self._begun = False

    def lines(self) -> Iterator[LogLine]:
        if not self._begun:
            self._begun = True
            for suffix in (_PREVIOUS, _OLDER):
                yield from self._whole(self._folder / f"{self._process}{suffix}")
        while self._reopened():
            assert self._file is not None
            yield from self._parsed(self._file)
            if not self._replaced():
                return
            self._file.close()
            self._file, self._partial = None, b""

    def _whole(self, path: Path) -> Iterator[LogLine]:
        try:
            with path.open("rb") as file:
                yield from self._parsed(file)
        except FileNotFoundError:
            return
        self._partial = b""

    def _reopened(self) -> bool:
        """Whether there is a log to read; one that was cut is read from its beginning."""
        try:
            self._file = self._file or log_file(self._folder, self._process).open("rb")
        except FileNotFoundError:
            return False
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
        return True

    def _replaced(self) -> bool:
        """Whether the stack has started again since, with a new file of that name."""
        assert self._file is not None
        try:
            now = log_file(self._folder, self._process).stat()
        except FileNotFoundError:
            return False
        return now.st_ino != os.fstat(self._file.fileno()).st_ino

    def _parsed(self, file: BinaryIO) -> Iterator[LogLine]:
        """Plain text is taken to be from the time of the line before, and about its run."""
        for raw in file:
            self._partial += raw
            if not raw.endswith(b"\n"):
                return  # the rest of it comes
            text, self._partial = self._partial.decode(errors="replace").rstrip(), b""
            if text:
                last = self._last
                at = last.at if last else datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
                self._last = parse_line(text, self._process, at, last.run if last else None)
                yield self._last
