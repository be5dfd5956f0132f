"""Leases in JetStream's key-value store: they decide who tries, and protect nothing; the fenced log protects."""

from __future__ import annotations

import asyncio
from typing import Self

import nats
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from sluice.cancellation import end_tasks
from sluice.transport.nats import Bus
from sluice.wire import subjects


class Lease:
    """One held key, renewed in the background; `lost` is set when somebody else has it or it could not be renewed."""

    def __init__(self, bucket: KeyValue, key: str, holder: str, revision: int, ttl_seconds: float) -> None:
        self._bucket, self._key, self._holder, self._revision = bucket, key, holder, revision
        self._ttl = ttl_seconds
        self.lost = asyncio.Event()
        self._task = asyncio.create_task(self._renew(), name=f"lease {key}")

    @classmethod
    async def acquire(cls, bus: Bus, key: str, holder: str, ttl_seconds: float) -> Self | None:
        """Take the lease if it is free, else None. It falls free `ttl_seconds` after its holder stopped renewing."""
        bucket = await bus.bucket(subjects.LEASES_BUCKET, ttl_seconds)
        try:
            revision = await bucket.create(key, holder.encode())
        except KeyWrongLastSequenceError:
            return None
        return cls(bucket, key, holder, revision, ttl_seconds)

    async def release(self) -> None:
        """Give it back at once, so that a successor need not wait for it to run out."""
        await end_tasks([self._task])
        if not self.lost.is_set():
            try:
                await self._bucket.delete(self._key, last=self._revision)
            except (APIError, nats.errors.Error):
                return  # it runs out by itself

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        expires = loop.time() + self._ttl
        while loop.time() < expires:
            await asyncio.sleep(self._ttl / 3)
            try:
                self._revision = await self._bucket.update(self._key, self._holder.encode(), self._revision)
                expires = loop.time() + self._ttl
            except KeyWrongLastSequenceError:
                if not await self._still_mine():
                    break
            except (APIError, TimeoutError, nats.errors.Error):
                continue  # whatever it is: it may pass in time, else the lease is lost
        self.lost.set()

    async def _still_mine(self) -> bool:
        """A renewal whose answer was lost has moved the revision on; the value says whose it is."""
        try:
            entry = await self._bucket.get(self._key)
        except (KeyNotFoundError, nats.errors.Error):
            return False
        self._revision = entry.revision or self._revision
        return entry.value == self._holder.encode()
