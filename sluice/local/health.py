"""Waiting until a service can do its duty."""

from __future__ import annotations

import asyncio

from sluice.local.ports import LOOPBACK
from sluice.local.services import Health, HttpHealth, Service

POLL_SECONDS = 0.05
PROBE_SECONDS = 2.0


async def wait_healthy(service: Service) -> None:
    """Return once every check of `service` passes; the caller sets the deadline."""
    for health in service.health:
        while not await _passes(health):  # another process's port has no event to wait for
            await asyncio.sleep(POLL_SECONDS)


async def _passes(health: Health) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await (_answers_ok(health) if isinstance(health, HttpHealth) else _accepts(health.port))
    except (OSError, TimeoutError):
        return False


async def _accepts(port: int) -> bool:
    _, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.close()
    return True


async def _answers_ok(health: HttpHealth) -> bool:
    """Spoken by hand: an HTTP client's start costs more than the service it would wait for."""
    reader, writer = await asyncio.open_connection(LOOPBACK, health.port)
    try:
        writer.write(f"GET {health.path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode())
        return (await reader.readline()).split()[1:2] == [b"200"]
    finally:
        writer.close()
