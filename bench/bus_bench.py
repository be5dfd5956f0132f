"""The bus: rollouts stored and fetched as the services do it, beside queues that carry the same bytes.

Sluice's side encodes, hashes, stores with a message id, fetches by sequence, compares the hash and decodes. The others
store and fetch the same bytes and do nothing else: raw JetStream (publish, pull and acknowledge) on the same stream of
the same server, a Redis stream with a consumer group in Valkey, and files in a folder. Each waits for the answer to
each message, stores a few groups of eight at a time, fetches up to 64 messages at a time, and holds what it has fetched
as a trainer holds its batch. None of the three forces its file to the disk for each message. A round trip is storing
and fetching. The codec row is Sluice's side without the bus: encoding, hashing and decoding alone, in one thread. All
sides run in one process that takes memory from the system as a trainer's does (`sluice up` sets that).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

from bench.bus_sides import GROUP_SIZE, GROUPS_AT_ONCE, codec, file_queue, raw, redis_stream, sluice
from bench.harness import Report, figures_of, ratio, run_benchmark, services, take_turns
from sluice.local.stack import TORCH_ENVIRONMENT, StackOptions
from sluice.packed import LogProbs, TokenIds
from sluice.transport.nats import Bus
from sluice.types import FinishReason, PolicyVersion, Rollout, VersionSpan
from sluice.wire.codec import encode_rollout

NAME = "bus"
KILOBYTES = (40, 160)
VOCABULARY = 49152
QUEUES = ("raw", "redis", "files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side that count")
    parser.add_argument("--groups", type=int, default=48, help="groups of eight rollouts in a turn")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """Both sizes, all sides."""
    rounds, groups = (1, 2) if arguments.quick else (arguments.rounds, arguments.groups)
    folder: Path = arguments.output / "bus-stack"
    options = StackOptions(data=folder / "data", model=Path())
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    async with services(options, ["nats", "valkey"], folder / "logs") as (stack, supervisor):
        bus = await Bus.connect(stack.nats_url, "bench")
        await bus.ensure_streams()
        nats, valkey = supervisor.pids["nats"], supervisor.pids["valkey"]
        for kilobytes in KILOBYTES:
            rollouts = make_rollouts(kilobytes * 1000, groups)
            payloads = [encode_rollout(rollout) for rollout in rollouts]
            sizes[f"payload_bytes_{kilobytes}_kB"] = round(sum(map(len, payloads)) / len(payloads))
            sides = {
                "sluice": sluice(bus, nats, rollouts),
                "raw": raw(bus, nats, payloads),
                "redis": redis_stream(stack.redis_url, valkey, payloads),
                "files": file_queue(folder / "data" / "queue", payloads),
                "codec": codec(rollouts),
            }
            found = await take_turns(sides, rounds)
            figures |= {f"{side}, {kilobytes} kB": row for side, row in figures_of(found).items()}
            ratios |= {
                f"sluice / {other}, {kilobytes} kB, round trips": ratio(
                    found["sluice"], found[other], "round trips / s"
                )
                for other in QUEUES
            }
            ratios[f"raw / sluice, {kilobytes} kB, CPU-ms"] = ratio(found["raw"], found["sluice"], "CPU-ms")
        await bus.close()
    settings = {
        "rounds": rounds,
        "rollouts": groups * GROUP_SIZE,
        "group_size": GROUP_SIZE,
        "groups_at_once": GROUPS_AT_ONCE,
        **sizes,
    }
    return Report(settings, figures, ratios, READING)


READING = (
    "Rollouts a second; higher is better, a ratio of 1 would be free of charge. Client and server share the machine: "
    "CPU-ms are what one round trip of a rollout costs both of them."
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


if __name__ == "__main__":
    # Here and not in main(), which may be called in a process that is not its own.
    if not TORCH_ENVIRONMENT.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **TORCH_ENVIRONMENT})
    main()
