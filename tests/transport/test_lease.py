"""Leases: who tries. They protect nothing, but they must move on when their holder falls silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from nats.js.errors import KeyNotFoundError

from sluice.transport.lease import Lease
from sluice.transport.nats import Bus
from sluice.wire import subjects

TTL = 1.5


async def lease_holder(bus: Bus, key: str, ttl_seconds: float) -> str | None:
    """Name of the process that holds `key`, or None."""
    bucket = await bus.bucket(subjects.LEASES_BUCKET, ttl_seconds)
    try:
        return ((await bucket.get(key)).value or b"").decode() or None
    except KeyNotFoundError:
        return None


async def test_a_lease_has_one_holder_until_it_is_released(bus: Bus) -> None:
    first = await Lease.acquire(bus, "coordinator.run", "a", TTL)
    assert first is not None
    assert await Lease.acquire(bus, "coordinator.run", "b", TTL) is None
    assert await lease_holder(bus, "coordinator.run", TTL) == "a"
    await first.release()
    second = await Lease.acquire(bus, "coordinator.run", "b", TTL)
    assert second is not None
    await second.release()


async def test_a_holder_that_renews_keeps_it_beyond_its_time(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "k", "a", TTL)
    assert lease is not None
    await asyncio.sleep(2 * TTL)
    assert await lease_holder(bus, "k", TTL) == "a"
    assert not lease.lost.is_set()
    await lease.release()


async def test_the_lease_of_a_silent_holder_falls_free_and_the_holder_learns_that_it_lost(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "k", "a", TTL)
    assert lease is not None
    lease._task.cancel()  # it no longer renews, as if its process were frozen
    async with asyncio.timeout(20 * TTL):
        while (other := await Lease.acquire(bus, "k", "b", TTL)) is None:
            await asyncio.sleep(0.1)
    woken = asyncio.create_task(lease._renew())
    async with asyncio.timeout(20 * TTL):
        await lease.lost.wait()
    await asyncio.gather(woken)
    await other.release()


async def test_a_holder_whose_renewals_the_server_refuses_learns_that_it_lost(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "k", "a", TTL)
    assert lease is not None
    leases = (await bus.js.stream_info(f"KV_{subjects.LEASES_BUCKET}")).config
    await bus.js.update_stream(replace(leases, max_msg_size=8))
    async with asyncio.timeout(20 * TTL):
        await lease.lost.wait()
    await lease.release()
