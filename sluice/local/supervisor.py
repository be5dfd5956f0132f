"""Keeps the services of one machine alive: starts them in the order of their needs, restarts what dies, ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from sluice.errors import ConfigError, SluiceError
from sluice.local import log_files
from sluice.local.policy import Ending, GiveUp, History, decide, ending_text, finished
from sluice.local.process import last_line
from sluice.local.services import Service
from sluice.local.unit import Unit

T = TypeVar("T")
LOG_CHECK_SECONDS = 5.0
"""How often the size of the logs is looked at."""


class StackError(SluiceError):
    """A service cannot be brought up or kept up; names it, how it ended, its last line and its log."""


class Change(StrEnum):
    STARTED = "started"
    HEALTHY = "healthy"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Notice:
    """What happened to a service, for people and for the state file."""

    service: str
    change: Change
    detail: str = ""


class Supervisor:
    """Owns the processes of `services`, each of which names in `after` only services that stand before it."""

    def __init__(self, services: Sequence[Service], logs: Path, report: Callable[[Notice], None]) -> None:
        self._logs, self._report = logs, report
        self._units = {service.name: Unit(service, self.log_path) for service in services}
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of what runs now, by command name."""
        return {child.command.name: child.pid for unit in self._units.values() for child in unit.children}

    def log_path(self, command_name: str) -> Path:
        return log_files.log_file(self._logs, command_name)

    async def start(self) -> None:
        """Start every service after those it needs; return when all are healthy.

        Raises:
            ConfigError: a service refused its configuration; its own line.
            StackError: a service ended, or was not healthy in time.
        """
        self._set_old_logs_aside()
        self._keepers = [asyncio.create_task(self._keep(unit)) for unit in self._units.values()]
        self._keepers.append(asyncio.create_task(self._keep_logs_short()))
        await self.during(self._all_healthy())

    async def during(self, work: Coroutine[None, None, T]) -> T:
        """The result of `work`, which is cancelled when the stack fails. Raises: as `start`, and what `work` raises."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
            for keeper in self._keepers:
                if keeper.done():
                    keeper.result()
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """End every service after those that need it: SIGTERM, then SIGKILL."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        gone = {name: asyncio.Event() for name in self._units}
        await asyncio.gather(*(self._stop(unit, gone) for unit in self._units.values()))

    async def _keep(self, unit: Unit) -> None:
        """Start, watch, start again. Ends only by cancellation, or with the error that ends the stack."""
        service, history = unit.service, History()
        while True:
            for need in service.after:
                await self._units[need].healthy.wait()
            ending = await self._live_once(unit)
            history.note(service, ending)
            decision = decide(service, ending, history)
            if isinstance(decision, GiveUp):
                raise self._failure(service, ending, decision.user_fault)
            self._report(Notice(service.name, Change.ENDED, self._ended_text(service, ending, decision.delay_seconds)))
            await asyncio.sleep(decision.delay_seconds)

    async def _live_once(self, unit: Unit) -> Ending:
        await unit.start()
        self._report(Notice(unit.service.name, Change.STARTED))
        if not await unit.wait_healthy():
            return await unit.give_up_start()
        self._report(Notice(unit.service.name, Change.HEALTHY))
        return await unit.wait_end()

    async def _all_healthy(self) -> None:
        for unit in self._units.values():
            await unit.healthy.wait()

    async def _stop(self, unit: Unit, gone: dict[str, asyncio.Event]) -> None:
        name = unit.service.name
        for other in self._units.values():
            if name in other.service.after:
                await gone[other.service.name].wait()
        await unit.stop()
        gone[name].set()
        self._report(Notice(name, Change.STOPPED))

    def _set_old_logs_aside(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        for command in self._command_names():
            log_files.set_aside(self._logs, command)

    async def _keep_logs_short(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            for command in self._command_names():
                await asyncio.to_thread(log_files.bound, self._logs, command, log_files.MOST_LOG_BYTES)

    def _command_names(self) -> list[str]:
        return [command.name for unit in self._units.values() for command in unit.service.commands]

    def _failure(self, service: Service, ending: Ending, user_fault: bool) -> SluiceError:
        log = self.log_path(ending.command)
        said = last_line(log)
        if user_fault and said:
            return ConfigError(said)
        return StackError(f"{service.name} {ending_text(service, ending)}; its last line: {said!r}; log: {log}")

    def _ended_text(self, service: Service, ending: Ending, delay_seconds: float) -> str:
        if finished(service, ending):
            return "finished; starts again for the next run"
        text = f"{ending_text(service, ending)}; starts again in {delay_seconds:g} s"
        return f"{text}; log: {self.log_path(ending.command)}"
