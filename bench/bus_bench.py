"""The bus: rollouts stored and fetched as the services do it, beside raw JetStream with the same bytes.

Sluice's side encodes, hashes, stores with a message id, fetches by sequence, compares the hash and decodes. The raw
side publishes and gets messages of the same bytes and does nothing else. Both wait for the server's acknowledgement of
each message, store to the same file-backed stream of one real server, eight rollouts (a group) at a time, and fetch all
of them with as many requests under way. A round trip is storing and fetching. The codec row is Sluice's side without
the bus: encoding, hashing and decoding alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import Measured, Report, Side, figures_of, ratio, run_benchmark, services, take_turns
from bench.processes import cpu_seconds
from sluice.local.stack import StackOptions
from sluice.packed import LogProbs, TokenIds
from sluice.transport.nats import Bus
from sluice.transport.queues import PARALLEL_FETCHES, fetch_rollouts, store_rollout
from sluice.types import FinishReason, PolicyVersion, Rollout, VersionSpan
from sluice.wire import subjects
from sluice.wire.codec import content_hash, decode_rollout, encode_rollout

NAME = "bus"
GROUP_SIZE = 8
KILOBYTES = (40, 160)
VOCABULARY = 49152


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side that count")
    parser.add_argument("--groups", type=int, default=48, help="groups of eight rollouts in a turn")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """Both sizes, both sides."""
    rounds, groups = (1, 2) if arguments.quick else (arguments.rounds, arguments.groups)
    folder: Path = arguments.output / "bus-stack"
    options = StackOptions(data=folder / "data", model=Path())
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    async with services(options, ["nats"], folder / "logs") as (stack, supervisor):
        bus = await Bus.connect(stack.nats_url, "bench")
        await bus.ensure_streams()
        server = supervisor.pids["nats"]
        for kilobytes in KILOBYTES:
            rollouts = make_rollouts(kilobytes * 1000, groups)
            payloads = [encode_rollout(rollout) for rollout in rollouts]
            sizes[f"payload_bytes_{kilobytes}_kB"] = round(sum(map(len, payloads)) / len(payloads))
            sides = {
                "sluice": _sluice(bus, server, rollouts),
                "raw": _raw(bus, server, payloads),
                "codec": _codec(bus, server, rollouts),
            }
            found = await take_turns(sides, rounds)
            figures |= {f"{side}, {kilobytes} kB": row for side, row in figures_of(found).items()}
            ratios |= {
                f"sluice / raw, {kilobytes} kB, {way}": ratio(found["sluice"], found["raw"], f"{way} / s")
                for way in ("stored", "fetched", "round trips")
            }
        await bus.close()
    settings = {"rounds": rounds, "rollouts": groups * GROUP_SIZE, "group_size": GROUP_SIZE, **sizes}
    return Report(settings, figures, ratios, READING)


READING = (
    "Rollouts a second; higher is better, a ratio of 1 would be free of charge. Client and server share the machine: "
    "client CPU-ms and server CPU-ms are what one round trip of a rollout costs each of them."
)


def make_rollouts(payload_bytes: int, groups: int) -> list[Rollout]:
    """Rollouts whose encoded form is about `payload_bytes`: random tokens, so that nothing compresses by luck."""
    trial = len(encode_rollout(_rollout(random.Random(0), 0, 0, 1000)))
    tokens = round(1000 * payload_bytes / trial)
    numbers = random.Random(1)
    return [_rollout(numbers, n, i, tokens) for n in range(groups) for i in range(GROUP_SIZE)]


def _rollout(numbers: random.Random, n: int, i: int, tokens: int) -> Rollout:
    return Rollout(
        run_id="bench",
        n=n,
        attempt="bench",
        i=i,
        prompt_token_ids=TokenIds(numbers.choices(range(VOCABULARY), k=64)),
        token_ids=TokenIds(numbers.choices(range(VOCABULARY), k=tokens)),
        logprobs=LogProbs(-numbers.expovariate(1.0) for _ in range(tokens)),
        finish_reason=FinishReason.STOP,
        spans=(VersionSpan(PolicyVersion(0, 1), 0, tokens),),
    )


def _sluice(bus: Bus, server: int, rollouts: Sequence[Rollout]) -> Side:
    async def turn() -> Measured:
        # Another attempt each turn: the server would take a second message with the same id for a repetition.
        attempt = secrets.token_hex(8)
        named = [replace(rollout, attempt=attempt) for rollout in rollouts]

        async def store() -> list[tuple[tuple[int, ...], bytes]]:
            stored = await _in_groups(named, lambda rollout: store_rollout(bus, rollout))
            return [(s.sequences, s.content_hash) for s in stored]

        async def fetch(wanted: Sequence[tuple[tuple[int, ...], bytes]]) -> None:
            fetched = await fetch_rollouts(bus, wanted)
            assert [(r.n, r.i) for r in fetched] == [(r.n, r.i) for r in named]

        return await _timed(bus, server, len(named), store, fetch)

    return turn


def _raw(bus: Bus, server: int, payloads: Sequence[bytes]) -> Side:
    subject = subjects.rollouts("raw")

    async def turn() -> Measured:
        async def store() -> list[int]:
            acks = await _in_groups(payloads, lambda payload: bus.js.publish(subject, payload))
            return [ack.seq for ack in acks]

        async def fetch(sequences: Sequence[int]) -> None:
            room = asyncio.Semaphore(PARALLEL_FETCHES)

            async def one(sequence: int) -> int:
                async with room:
                    message = await bus.js.get_msg(subjects.ROLLOUTS, sequence, direct=True)
                    return len(message.data or b"")

            assert await asyncio.gather(*map(one, sequences)) == [len(payload) for payload in payloads]

        return await _timed(bus, server, len(payloads), store, fetch)

    return turn


def _codec(bus: Bus, server: int, rollouts: Sequence[Rollout]) -> Side:
    """What Sluice's side does besides sending: encode and hash, hash and decode."""

    async def turn() -> Measured:
        async def encode() -> list[tuple[bytes, bytes]]:
            payloads = map(encode_rollout, rollouts)
            return [(payload, content_hash(payload)) for payload in payloads]

        async def decode(stored: Sequence[tuple[bytes, bytes]]) -> None:
            assert all(content_hash(payload) == expected for payload, expected in stored)
            assert sum(len(decode_rollout(payload).token_ids) for payload, _ in stored)

        return await _timed(bus, server, len(rollouts), encode, decode)

    return turn


async def _in_groups(items: Sequence[Any], store: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Store a group at a time, as a worker does; the results in order."""
    results: list[Any] = []
    for at in range(0, len(items), GROUP_SIZE):
        results += await asyncio.gather(*map(store, items[at : at + GROUP_SIZE]))
    return results


async def _timed(
    bus: Bus, server: int, count: int, store: Callable[[], Awaitable[Any]], fetch: Callable[[Any], Awaitable[None]]
) -> Measured:
    clocks = [_clocks(server)]
    stored = await store()
    clocks.append(_clocks(server))
    await fetch(stored)
    clocks.append(_clocks(server))
    await bus.js.purge_stream(subjects.ROLLOUTS)
    (begin, client, broker), (middle, _, _), (end, client_end, broker_end) = clocks
    return {
        "stored / s": count / (middle - begin),
        "fetched / s": count / (end - middle),
        "round trips / s": count / (end - begin),
        "client CPU-ms": 1000 * (client_end - client) / count,
        "server CPU-ms": 1000 * (broker_end - broker) / count,
    }


def _clocks(server: int) -> tuple[float, float, float]:
    return time.monotonic(), time.process_time(), cpu_seconds(server)


if __name__ == "__main__":
    main()
