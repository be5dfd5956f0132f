"""Live status in Redis: for people, and for nothing else. Redis may vanish at any time, its file too."""

from __future__ import annotations

import time

import redis.asyncio as redis
from redis.exceptions import RedisError

from services.coordinator.status import LiveStatus
from sluice.telemetry import Logger

EXPIRE_SECONDS = 10


class StatusBoard:
    """Where the holder of a run shows how it stands, and every API replica reads it."""

    def __init__(self, url: str, log: Logger) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        self._log = log
        self._away_since: float | None = None

    def away_seconds(self) -> float:
        """For how long Redis has been away; 0 while it is there, or was not asked yet."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def show(self, run_id: str, status: LiveStatus) -> None:
        """Show a run's status for the next seconds; without Redis nothing is shown, and the log says so once."""
        try:
            await self._redis.set(_key(run_id), status.model_dump_json(), ex=EXPIRE_SECONDS)
            self._away_since = None
        except (RedisError, OSError) as error:
            self._note(error)

    async def read(self, run_id: str) -> LiveStatus | None:
        """What the holder showed last; None when nobody did, or Redis is away."""
        try:
            shown = await self._redis.get(_key(run_id))
            self._away_since = None
        except (RedisError, OSError) as error:
            self._note(error)
            return None
        return LiveStatus.model_validate_json(shown) if shown else None

    def _note(self, error: Exception) -> None:
        """Said once, until it is back."""
        if self._away_since is None:
            self._log.warning("redis_away", error=str(error))
            self._away_since = time.monotonic()

    async def close(self) -> None:
        await self._redis.aclose()


def _key(run_id: str) -> str:
    return f"sluice:status:{run_id}"
