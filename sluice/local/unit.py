"""The processes of one service: started together, and all gone once the first of them has ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from sluice.local.health import wait_healthy
from sluice.local.policy import Ending
from sluice.local.ports import free_ports
from sluice.local.process import STOP_SECONDS, Child
from sluice.local.services import Command, Service


class Unit:
    """`healthy` is set while every process of the service runs and its health checks have passed."""

    def __init__(self, service: Service, log_path: Callable[[str], Path]) -> None:
        self.service = service
        self.healthy = asyncio.Event()
        self.children: list[Child] = []
        self._log_path = log_path
        self._healthy_since = 0.0

    async def start(self) -> None:
        """Make the folders, start every process. Raises: ConfigError: one cannot be executed."""
        for folder in self.service.folders:
            with contextlib.suppress(OSError):  # the service needs it, and says in its log why it cannot have it
                folder.mkdir(parents=True, exist_ok=True)
        for command in self._commands():
            self.children.append(await Child.start(command, self._log_path(command.name)))

    async def wait_healthy(self) -> bool:
        """True once healthy; False if a process ended first or `start_seconds` passed."""
        probe = asyncio.create_task(wait_healthy(self.service))
        exits = self._exits()
        try:
            timeout = self.service.start_seconds
            await asyncio.wait([probe, *exits], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if probe.done():
                probe.result()
                self._healthy_since = time.monotonic()
                self.healthy.set()
        finally:
            _cancel(probe, *exits)
        return self.healthy.is_set()

    async def wait_end(self) -> Ending:
        """Return once a process of a healthy service has ended and the others are gone too."""
        exits = self._exits()
        try:
            await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
            return await self._end(exits)
        finally:
            _cancel(*exits)

    async def give_up_start(self) -> Ending:
        """End what `wait_healthy` said is not healthy."""
        exits = self._exits()
        try:
            await asyncio.sleep(0)  # lets the waits of processes that are gone already complete
            return await self._end(exits)
        finally:
            _cancel(*exits)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns once all are gone."""
        self.healthy.clear()
        await asyncio.gather(*(child.stop() for child in self.children))
        self.children.clear()

    async def _end(self, exits: list[asyncio.Task[int]]) -> Ending:
        healthy_seconds = time.monotonic() - self._healthy_since if self.healthy.is_set() else None
        self.healthy.clear()
        ended = [task for task in exits if task.done()]
        if ended and all(task.result() == 0 for task in ended):
            # The ranks of a trainer finish one after another; let them.
            await asyncio.wait(exits, timeout=STOP_SECONDS)
            ended = [task for task in exits if task.done()]
        worst = next((task for task in ended if task.result() != 0), ended[0] if ended else None)
        ending = Ending(
            command=self.children[exits.index(worst)].command.name if worst else self.children[0].command.name,
            code=worst.result() if worst else None,
            healthy_seconds=healthy_seconds,
        )
        await self.stop()
        return ending

    def _exits(self) -> list[asyncio.Task[int]]:
        return [asyncio.create_task(child.wait()) for child in self.children]

    def _commands(self) -> list[Command]:
        ports = free_ports(len(self.service.fresh_ports))
        fresh = {name: str(port) for name, port in zip(self.service.fresh_ports, ports, strict=True)}
        return [dataclasses.replace(c, environment={**c.environment, **fresh}) for c in self.service.commands]


def _cancel(*tasks: asyncio.Task[int] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
