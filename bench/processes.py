"""Processes as a benchmark sees them: what they used, and one that measures a side and answers line by line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from sluice.errors import SluiceError

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
STOP_SECONDS = 10.0


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, user and system, all its threads, to the nanosecond. Raises: OSError: it is gone."""
    # What clock_getcpuclockid(3) computes: the scheduler's clock of that process. /proc counts in ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def session_cpu_seconds() -> dict[int, float]:
    """By session: processor time of its processes and of those that they have waited for."""
    found: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        fields = _stat(int(folder.name)) if folder.name.isdigit() else []
        if fields:
            session = int(fields[3])
            found[session] = found.get(session, 0.0) + sum(map(int, fields[11:15])) / TICKS_A_SECOND
    return found


def session_rss_mib() -> dict[int, float]:
    """By session: memory that its processes have resident; what they share counts for each."""
    found: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        fields = _stat(int(folder.name)) if folder.name.isdigit() else []
        if fields:
            session = int(fields[3])
            found[session] = found.get(session, 0.0) + int(fields[21]) * PAGE_BYTES / (1 << 20)
    return found


def machine_cpu_seconds() -> float:
    """Processor time that everything on this machine has used."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + softirq) / TICKS_A_SECOND


def peak_rss_mib() -> float:
    """Most memory that this process ever had resident."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def _stat(pid: int) -> list[str]:
    """Fields of proc(5) from the state on; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


class Peer:
    """A process that runs `serve`: each line of JSON it is sent, it answers with one."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.pid = process.pid
        self._process, self._log = process, log

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str], log: Path) -> Self:
        """Start `python -m module`; its first request is what it begins with."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                limit=1 << 26,
            )
        return cls(process, log)

    async def ask(self, request: Any) -> Any:
        """Raises: SluiceError: the process has ended; names its log."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise SluiceError(f"the process of {self._log.stem} ended early; see {self._log}")
        return json.loads(line)

    async def stop(self) -> None:
        """It leaves when its input ends, or is killed after STOP_SECONDS."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def serve(begin: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Be a Peer's process: the first request is given to `begin`, the others to what it returns.

    Should memory run out, the kernel ends this process and nobody else's. Whatever libraries print goes to standard
    error, so that answers stand alone on standard output.
    """
    Path("/proc/self/oom_score_adj").write_text("1000")
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        answer = begin(json.loads(sys.stdin.readline()))
        answers.write("null\n")
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()
