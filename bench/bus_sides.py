"""The sides of `bus_bench.py`: ways to bring the rollouts of a batch from a worker to a trainer, acknowledged."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import redis.asyncio as redis
from nats.js.api import AckPolicy, ConsumerConfig

from bench.harness import Measured, Side
from bench.processes import cpu_seconds
from sluice.transport.nats import Bus
from sluice.transport.queues import PARALLEL_FETCHES, Stored, fetch_rollouts, store_rollouts
from sluice.types import Rollout
from sluice.wire import subjects
from sluice.wire.codec import decode_rollout, encode_rollout
from sluice.wire.payload import content_hash

T = TypeVar("T")
R = TypeVar("R")
GROUP_SIZE = 8
GROUPS_AT_ONCE = 4
"""Groups whose rollouts are being stored at the same time; a worker has up to 32 in flight."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall clock, processor time of this process, and that of the server; seconds."""

    wall: float
    client: float
    server: float

    @classmethod
    def now(cls, server: int | None) -> Clocks:
        return cls(time.monotonic(), time.process_time(), cpu_seconds(server) if server else 0.0)


async def timed(
    server: int | None, count: int, store: Callable[[], Awaitable[T]], fetch: Callable[[T], Awaitable[None]]
) -> Measured:
    """What storing `count` rollouts, then fetching them, took."""
    begin = Clocks.now(server)
    stored = await store()
    middle = Clocks.now(server)
    await fetch(stored)
    end = Clocks.now(server)
    client, broker = end.client - begin.client, end.server - begin.server
    return {
        "stored / s": count / (middle.wall - begin.wall),
        "fetched / s": count / (end.wall - middle.wall),
        "round trips / s": count / (end.wall - begin.wall),
        "client CPU-ms": 1000 * client / count,
        "server CPU-ms": 1000 * broker / count,
        "CPU-ms": 1000 * (client + broker) / count,
    }


async def in_groups(items: Sequence[T], store: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> list[R]:
    """Store the groups of `items`, GROUPS_AT_ONCE at a time; what `store` returned, in order."""
    room = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def one(at: int) -> Sequence[R]:
        async with room:
            return await store(items[at : at + GROUP_SIZE])

    groups = await asyncio.gather(*map(one, range(0, len(items), GROUP_SIZE)))
    return [stored for group in groups for stored in group]


def sluice(bus: Bus, server: int, rollouts: Sequence[Rollout]) -> Side:
    """As the services do it: encoded, hashed, stored; fetched by sequence, compared with the hash, decoded."""

    async def turn() -> Measured:
        # Another attempt each turn: the server would take a second message with the same id for a repetition.
        attempt = secrets.token_hex(8)
        named = [replace(rollout, attempt=attempt) for rollout in rollouts]

        async def store() -> list[Stored]:
            return await in_groups(named, lambda group: store_rollouts(bus, group))

        async def fetch(stored: Sequence[Stored]) -> None:
            fetched = await fetch_rollouts(bus, stored)
            assert [(r.n, r.i) for r in fetched] == [(r.n, r.i) for r in named]

        measured = await timed(server, len(named), store, fetch)
        await bus.js.purge_stream(subjects.ROLLOUTS)
        return measured

    return turn


def raw(bus: Bus, server: int, payloads: Sequence[bytes]) -> Side:
    """The same bytes published to the same stream, then pulled and acknowledged; nothing else."""
    subject = subjects.rollouts("raw")

    async def turn() -> Measured:
        async def store() -> None:
            await in_groups(payloads, lambda group: asyncio.gather(*(bus.js.publish(subject, p) for p in group)))

        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, filter_subject=subject)
        consumer = await bus.js.pull_subscribe(subject, stream=subjects.ROLLOUTS, config=config)

        async def fetch(_: None) -> None:
            found: list[bytes] = []
            while len(found) < len(payloads):
                for message in await consumer.fetch(PARALLEL_FETCHES, timeout=5):
                    await message.ack()
                    found.append(message.data)
            assert sorted(map(len, found)) == sorted(map(len, payloads))

        measured = await timed(server, len(payloads), store, fetch)
        await consumer.unsubscribe()
        await bus.js.purge_stream(subjects.ROLLOUTS)
        return measured

    return turn


def redis_stream(url: str, server: int, payloads: Sequence[bytes]) -> Side:
    """The same bytes through a Redis stream and its consumer group, in an append-only file."""
    key, group = "rollouts", "trainer"

    async def turn() -> Measured:
        client: Any = redis.Redis.from_url(url)
        await client.xgroup_create(key, group, id="0", mkstream=True)

        async def store() -> None:
            await in_groups(payloads, lambda part: asyncio.gather(*(client.xadd(key, {"payload": p}) for p in part)))

        async def fetch(_: None) -> None:
            found: list[bytes] = []
            while len(found) < len(payloads):
                for _, entries in await client.xreadgroup(group, "rank-0", {key: ">"}, count=PARALLEL_FETCHES):
                    found += [fields[b"payload"] for _, fields in entries]
                    await client.xack(key, group, *(entry for entry, _ in entries))
            assert sorted(map(len, found)) == sorted(map(len, payloads))

        measured = await timed(server, len(payloads), store, fetch)
        await client.delete(key)
        await client.aclose()
        return measured

    return turn


def file_queue(folder: Path, payloads: Sequence[bytes]) -> Side:
    """The same bytes as files of one folder: written, renamed, listed, read, removed. The kernel writes them back."""

    def write() -> None:
        for at, payload in enumerate(payloads):
            temporary = folder / f".{at:06d}"
            temporary.write_bytes(payload)
            temporary.replace(folder / f"{at:06d}")

    def read() -> list[bytes]:
        found = []
        for file in sorted(folder.iterdir()):
            found.append(file.read_bytes())
            file.unlink()
        return found

    async def store() -> None:
        write()

    async def fetch(_: None) -> None:
        assert len(read()) == len(payloads)

    async def turn() -> Measured:
        os.makedirs(folder)
        measured = await timed(None, len(payloads), store, fetch)
        shutil.rmtree(folder)
        return measured

    return turn


def codec(rollouts: Sequence[Rollout]) -> Side:
    """What Sluice's side does besides sending, in this thread alone: encode and hash, hash and decode."""

    async def turn() -> Measured:
        async def encode() -> list[tuple[bytes, bytes]]:
            return [(payload, content_hash(payload)) for payload in map(encode_rollout, rollouts)]

        async def decode(stored: Sequence[tuple[bytes, bytes]]) -> None:
            assert all(content_hash(payload) == expected for payload, expected in stored)
            assert len([decode_rollout(payload) for payload, _ in stored]) == len(rollouts)

        return await timed(None, len(rollouts), encode, decode)

    return turn
