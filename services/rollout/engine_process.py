"""Starts the engine that the worker sits beside, restarts it when it dies, and stops it with the worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence

from services.rollout import metrics
from sluice.errors import ConfigError
from sluice.secrets import redact_command
from sluice.telemetry import Logger

STOP_SECONDS = 10.0
MAX_PAUSE_SECONDS = 30.0
STABLE_SECONDS = 60.0
"""An engine that lived this long is restarted at once when it dies."""


class EngineProcess:
    """One engine as a child process; it gets a SIGTERM also when the worker is killed, where the system can do that."""

    def __init__(self, command: Sequence[str], log: Logger) -> None:
        self._command, self._log = command, log

    async def supervise(self) -> None:
        """Keep the engine running until cancelled.

        Raises:
            ConfigError: there is no such program.
        """
        pause = 1.0
        while True:
            started = asyncio.get_running_loop().time()
            process = await self._start()
            try:
                code = await process.wait()
            finally:
                await _stop(process)
            lived = asyncio.get_running_loop().time() - started
            pause = 1.0 if lived > STABLE_SECONDS else min(pause * 2, MAX_PAUSE_SECONDS)
            self._log.error("engine_died", exit_code=code, lived_seconds=round(lived, 1), restart_in_seconds=pause)
            await asyncio.sleep(pause)

    async def _start(self) -> asyncio.subprocess.Process:
        if shutil.which(self._command[0]) is None:
            raise ConfigError(f"SLUICE_ENGINE_COMMAND={' '.join(self._command)!r}: there is no such program")
        metrics.ENGINE_STARTS.inc()
        tie = shutil.which("setpriv")
        tied = [tie, "--pdeathsig", "TERM", *self._command] if tie else list(self._command)
        self._log.info("engine_starting", command=redact_command(self._command))
        return await asyncio.create_subprocess_exec(*tied, start_new_session=True)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL, to the engine and whatever it started."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            continue
