"""One child process that cannot outlive its parent, with its output in a log file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sluice.errors import ConfigError
from sluice.local.log_lines import summary
from sluice.local.services import Command
from sluice.secrets import FILE_SUFFIX

STOP_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 16384


class Child:
    """A started process in a session of its own, so that a Ctrl-C on the terminal reaches the supervisor alone."""

    def __init__(self, command: Command, process: asyncio.subprocess.Process) -> None:
        self.command = command
        self.pid: int = process.pid
        self._process = process

    @classmethod
    async def start(cls, command: Command, log: Path) -> Child:
        """Raises: ConfigError: the program cannot be executed."""
        with log.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_environment(command.environment),
                    start_new_session=True,
                    preexec_fn=_die_with_parent(),
                )
            except OSError as error:
                raise ConfigError(f"{command.name}: {command.argv[0]} cannot be started: {error.strerror}") from None
        return cls(command, process)

    async def wait(self) -> int:
        """Exit code; minus the signal's number if one ended it. What it left in its session ends with it."""
        code = await self._process.wait()
        self._signal_session(signal.SIGKILL)
        return code

    async def stop(self) -> None:
        """SIGTERM, SIGKILL after STOP_SECONDS; returns once it is gone."""
        if self._process.returncode is None:
            self._terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                self._signal_session(signal.SIGKILL)
        await self.wait()

    def _terminate(self) -> None:
        try:
            self._process.terminate()
        except ProcessLookupError:
            return  # it ended in this moment

    def _signal_session(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left in it


def last_line(log: Path) -> str:
    """The last line a process wrote that is not empty: by our services' convention, why it ended."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return summary(next((line for line in reversed(lines) if line), ""))


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Ours, with what the command adds; what it sets by value is not also given by a file."""
    kept = {name: value for name, value in os.environ.items() if name.removesuffix(FILE_SUFFIX) not in added}
    return {**kept, **added}


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs before its program: ask the kernel to kill it when its parent dies, even by SIGKILL."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask
