"""Verdicts kept in Redis by content, so that what was judged once, by whichever replica, is not judged again.

The key covers the verifier's label, which changes with its code, and everything that it is given; the item's id only
for users' verifiers, since built-in ones do not look at it. Failures are never kept. Redis may be slow, empty or gone:
then items are judged as if there were no cache.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence

import redis.asyncio as redis
from redis.exceptions import RedisError

from services.reward import metrics
from services.reward.loop import Judges
from services.reward.verifiers.registry import BUILT_IN, CODE
from sluice.telemetry import Logger
from sluice.types import ScoreItem, Verdict, VerdictKind

CHEAP = frozenset({"exact", "gsm8k", "math_dapo", "math_dapo_boxed", "multiple_choice"})
"""Checks that cost less than a look-up."""
EXPIRE_SECONDS = 7 * 24 * 3600
WAIT_SECONDS = 0.5
"""A Redis that takes longer counts as lost."""
LOST_SECONDS = 5.0
"""After a loss it is left alone for so long."""

_BUILT_IN = frozenset(entry.name for entry in (*BUILT_IN, CODE))


class CachedJudges:
    """Asks the cache first, and `judges` for the rest."""

    def __init__(self, judges: Judges, labels: Mapping[str, str], url: str, log: Logger) -> None:
        self._judges, self._labels, self._log = judges, labels, log
        self._redis = redis.Redis.from_url(url, socket_timeout=WAIT_SECONDS, socket_connect_timeout=WAIT_SECONDS)
        self._lost_until = 0.0

    async def score(self, items: Sequence[tuple[str, ScoreItem]]) -> list[Verdict]:
        """A verdict for each (verifier name, item), in their order."""
        keys = [None if name in CHEAP else self._key(name, item) for name, item in items]
        known = await self._read([key for key in keys if key is not None])
        kept = [known.get(key or b"") for key in keys]
        missing = [at for at, verdict in enumerate(kept) if verdict is None]
        fresh = dict(zip(missing, await self._judges.score([items[at] for at in missing]), strict=True))
        found = {key: fresh[at] for at, key in enumerate(keys) if key is not None and at in fresh}
        await self._write({key: verdict for key, verdict in found.items() if verdict.kind is VerdictKind.SCORED})
        return [verdict if verdict is not None else fresh[at] for at, verdict in enumerate(kept)]

    async def close(self) -> None:
        await self._redis.aclose()

    def _key(self, name: str, item: ScoreItem) -> bytes:
        fields = (item.data_source, item.prompt, item.response, item.ground_truth, item.extra_info)
        more = () if name in _BUILT_IN else (item.id, item.response_length)
        content = json.dumps([self._labels[name], *fields, *more]).encode()
        return b"sluice:verdict:" + hashlib.blake2b(content, digest_size=20).digest()

    async def _read(self, keys: Sequence[bytes]) -> dict[bytes, Verdict]:
        if not keys or time.monotonic() < self._lost_until:
            return {}
        try:
            values = await self._redis.mget(keys)
        except (RedisError, OSError) as error:
            self._lose(error, len(keys))
            return {}
        found = {key: _verdict(value) for key, value in zip(keys, values, strict=True) if value}
        metrics.CACHE.labels("hit").inc(len(found))
        metrics.CACHE.labels("miss").inc(len(keys) - len(found))
        return found

    async def _write(self, verdicts: Mapping[bytes, Verdict]) -> None:
        if not verdicts or time.monotonic() < self._lost_until:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key, verdict in verdicts.items():
                    pipeline.set(key, _value(verdict), ex=EXPIRE_SECONDS)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            self._lose(error, len(verdicts))

    def _lose(self, error: Exception, items: int) -> None:
        metrics.CACHE.labels("lost").inc(items)
        self._lost_until = time.monotonic() + LOST_SECONDS
        self._log.warning("cache_lost", error=str(error), retry_seconds=LOST_SECONDS)


def _value(verdict: Verdict) -> str:
    return json.dumps([verdict.acc, verdict.score, verdict.extracted, verdict.verifier, verdict.seconds])


def _verdict(value: bytes | str) -> Verdict:
    """Only scored verdicts are kept."""
    return Verdict(VerdictKind.SCORED, *json.loads(value))
