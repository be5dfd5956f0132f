"""Small real services for tests of the supervisor, and what they left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from sluice.local.binaries import valkey_server
from sluice.local.services import Command, Health, Service, TcpHealth
from sluice.local.supervisor import Notice, Supervisor


def shell(name: str, script: str, **options: object) -> Service:
    """A service that is a shell script; healthy at once unless `health` says otherwise."""
    options.setdefault("health", ())
    return Service(name, (Command(name, ("/bin/sh", "-c", script)),), **options)  # type: ignore[arg-type]  # keywords of Service


def valkey(name: str, port: int, folder: Path, after: tuple[str, ...] = ()) -> Service:
    """A real server that listens on `port`."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = (valkey_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
    health: tuple[Health, ...] = (TcpHealth(port),)
    return Service(name, (Command(name, argv),), health, after=after)


@contextlib.asynccontextmanager
async def supervised(
    services: list[Service], logs: Path, notices: list[Notice] | None = None
) -> AsyncIterator[Supervisor]:
    """All services healthy; afterwards all ended."""
    supervisor = Supervisor(services, logs, (notices if notices is not None else []).append)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.stop()


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Raises: TimeoutError: `condition` did not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        await asyncio.sleep(0.02)


def kill(pid: int) -> None:
    os.kill(pid, 9)
