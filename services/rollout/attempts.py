"""What is known about earlier attempts at a prompt: a key-value entry each, written before the attempt starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nats.js.errors import APIError, KeyNotFoundError
from nats.js.kv import KeyValue

from sluice.errors import TransientError
from sluice.transport.log import WRONG_LAST_SEQUENCE
from sluice.transport.nats import RETRYABLE, Bus
from sluice.wire import subjects

TTL_SECONDS = 7 * 24 * 3600.0
SUSPECT_AFTER = 2
"""After so many attempts with a bad end the prompt runs alone on its worker."""


@dataclass(frozen=True, slots=True)
class Record:
    """`failed`: attempts in which the engine died or refused; only these can end a prompt. `open`: names of attempts
    that have begun and not ended: their workers work on them, or died with them."""

    failed: int = 0
    open: tuple[str, ...] = ()

    @property
    def suspect(self) -> bool:
        """So many attempts ended badly or vanished that the next one should harm nobody else."""
        return self.failed + len(self.open) >= SUSPECT_AFTER


class Attempts:
    """The attempts at one run's prompts."""

    def __init__(self, bus: Bus, run_id: str, bucket: KeyValue) -> None:
        self._bus, self._run_id, self._bucket = bus, run_id, bucket

    @classmethod
    async def open(cls, bus: Bus, run_id: str) -> Attempts:
        return cls(bus, run_id, await bus.bucket(subjects.ATTEMPTS_BUCKET, TTL_SECONDS))

    async def begin(self, n: int, attempt: str) -> Record:
        """Record that `attempt` starts; returns what was known before it."""
        # Nearly every prompt has one attempt, so nothing is looked up before there is something to find.
        if await self._write(n, Record(0, (attempt,)), revision=0):
            return Record()
        old = await self._change(n, lambda old: _with(_without(old, attempt, 0), attempt))
        return _without(old, attempt, 0)  # should it be there, the answer to our own first try was lost

    async def end(self, n: int, attempt: str, engine_failed: bool) -> int:
        """Record that `attempt` ended; returns how many have failed now."""

        def ended(old: Record) -> Record:
            return _without(old, attempt, int(engine_failed))

        return ended(await self._change(n, ended)).failed

    async def forget(self, n: int) -> None:
        """The group is stored: nobody will ask again. Nothing is left of the entry, not even that it is deleted."""
        await self._bus.purge(f"KV_{subjects.ATTEMPTS_BUCKET}", self._subject(n))

    async def _change(self, n: int, change: Callable[[Record], Record]) -> Record:
        """Compare-and-set until it holds; returns the old value."""
        while True:  # as long as another worker writes in between
            old, revision = await self._read(n)
            if await self._write(n, change(old), revision):
                return old

    async def _read(self, n: int) -> tuple[Record, int]:
        """The entry and its revision; 0 when there is none."""
        try:
            entry = await self._bus.asking(self._subject(n), partial(self._bucket.get, self._key(n)))
        except KeyNotFoundError as error:
            return Record(), (error.entry and error.entry.revision) or 0
        except RETRYABLE as error:
            raise TransientError(f"bucket {subjects.ATTEMPTS_BUCKET!r} does not answer: {error}") from None
        fields = json.loads(entry.value or b"{}")
        return Record(int(fields.get("failed", 0)), tuple(fields.get("open", ()))), entry.revision or 0

    async def _write(self, n: int, record: Record, revision: int) -> bool:
        """Whether it is stored: not if somebody has written since `revision`."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        try:
            await self._bus.publish(self._subject(n), _encode(record), headers)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            return False
        return True

    def _key(self, n: int) -> str:
        return f"{self._run_id}.{n}"

    def _subject(self, n: int) -> str:
        return f"$KV.{subjects.ATTEMPTS_BUCKET}.{self._key(n)}"


def _with(old: Record, attempt: str) -> Record:
    return Record(old.failed, (*old.open, attempt))


def _without(old: Record, attempt: str, failed: int) -> Record:
    """Without an attempt that has ended; it is no longer there, and counted, if the answer to a first try was lost."""
    if attempt not in old.open:
        return old
    return Record(old.failed + failed, tuple(name for name in old.open if name != attempt))


def _encode(record: Record) -> bytes:
    return json.dumps({"failed": record.failed, "open": record.open}).encode()
