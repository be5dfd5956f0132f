"""Says that this worker is there: in the key-value store, which counts, and in Redis, which people look at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from nats.js.kv import KeyValue
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.rollout.run import NATS_FAULTS, Run
from sluice.cancellation import end_tasks
from sluice.transport.queues import publish_event
from sluice.waits import Reminder
from sluice.wire import subjects

REFRESH_SECONDS = 2.0
REDIS_SECONDS = 1.0
RATE_SECONDS = 30.0
"""Tokens per second are averaged over about so long."""


@dataclass(frozen=True, slots=True)
class Status:
    """What is told about a worker."""

    engine: str
    version: str | None
    evaluating: str | None
    """The policy version that it is reserved to evaluate; then it makes no training rollouts."""
    in_flight: int
    slots: int
    """Most groups that it takes on at once."""
    seconds: dict[str, float]
    """Since it joined the run, by what it did."""
    tokens: int
    """Response tokens since it joined the run."""
    waits: dict[str, float]
    """Seconds of its waits that go on now, by name."""


class LiveStatus:
    """Redis, best effort: while it is away nothing else notices."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(
            url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS, protocol=2
        )

    async def put(self, worker: str, payload: bytes) -> None:
        try:
            await self._redis.set(f"sluice:worker:{worker}", payload, ex=int(subjects.WORKER_TTL_SECONDS))
        except (RedisError, OSError):
            return

    async def remove(self, worker: str) -> None:
        try:
            await self._redis.delete(f"sluice:worker:{worker}")
        except (RedisError, OSError):
            return

    async def close(self) -> None:
        await self._redis.aclose()


class Presence:
    """Registers a worker with the run it serves."""

    def __init__(self, live: LiveStatus, status: Callable[[], Status]) -> None:
        self._live, self._status = live, status
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Renew the registration at once: others should not have to wait to know what has changed."""
        self._changed.set()

    @asynccontextmanager
    async def registered(self, run: Run) -> AsyncIterator[None]:
        """Register, renew while inside, and unregister."""
        bucket = await run.bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
        rate = _Rate(self._status().tokens)
        await self._renew(run, bucket, rate)
        await publish_event(run.bus, run.id, "worker_joined", {"worker": run.worker, "engine": self._status().engine})
        renewing = asyncio.create_task(self._keep_renewing(run, bucket, rate), name="presence")
        try:
            yield
        finally:
            await end_tasks([renewing])
            await self._leave(run, bucket)

    async def _keep_renewing(self, run: Run, bucket: KeyValue, rate: _Rate) -> None:
        reminder = Reminder()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            for wait, seconds in reminder.due(self._status().waits).items():
                run.log.warning("waiting", wait=wait, seconds=round(seconds))
            await self._renew(run, bucket, rate)

    async def _renew(self, run: Run, bucket: KeyValue, rate: _Rate) -> None:
        fields = asdict(self._status())
        fields |= {"run": run.id, "name": run.worker, "tokens_per_second": rate.update(fields.pop("tokens"))}
        payload = json.dumps(fields).encode()
        try:
            await bucket.put(f"{run.id}.{run.worker}", payload)
        except NATS_FAULTS:
            run.log.warning("registration_not_renewed")
        await self._live.put(run.worker, payload)

    async def _leave(self, run: Run, bucket: KeyValue) -> None:
        try:
            await bucket.delete(f"{run.id}.{run.worker}")
        except NATS_FAULTS:
            run.log.warning("registration_runs_out_by_itself", seconds=subjects.WORKER_TTL_SECONDS)
        await self._live.remove(run.worker)
        await publish_event(run.bus, run.id, "worker_left", {"worker": run.worker})


class _Rate:
    """Exponential average of tokens per second."""

    def __init__(self, tokens: int) -> None:
        self._tokens, self._time, self._rate = tokens, time.monotonic(), 0.0

    def update(self, tokens: int) -> float:
        now = time.monotonic()
        passed = max(now - self._time, 1e-3)
        weight = min(1.0, passed / RATE_SECONDS)
        self._rate += weight * ((tokens - self._tokens) / passed - self._rate)
        self._tokens, self._time = tokens, now
        return round(self._rate, 1)
