"""The reward service: verdicts a second through gRPC in batches, beside Math-Verify alone, and latency under poison.

The service runs as it is deployed, with a worker process a core, and shares the machine with this client. Requests hold
256 items, eight are open at once. `math_dapo` and `math` judge the same responses, half of them right: integers,
decimals, fractions, expressions, tuples, sets and intervals. The serial side parses and compares them with Math-Verify
in this process, its timeouts off. A core's worth is a second of CPU time of the service and its workers together.

The last two sides send groups of 16 responses, four open at a time. On the poisoned one, one item in a hundred is a
check that never ends and costs its whole time limit. Latency is that of groups without such an item: what their
neighbours do to them, beside the same groups with healthy neighbours. About two minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.harness import Figures, Measured, Report, Side, Spread, figures_of, ratio, run_benchmark, take_turns
from bench.processes import TICKS_A_SECOND
from sluice.transport.reward import RewardClient
from sluice.types import ScoreItem, VerdictKind

NAME = "reward"
BATCH, OPEN = 256, 8
GROUP = 16
POISONED = 0.01
SERIAL_SHARE = 4
"""The serial side judges a quarter of the responses: it has one core."""
LIMIT_SECONDS = 2
START_SECONDS = 60.0
REASONING = "We look at each case in turn, add what they give, and check the sum against the first line. " * 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side that count")
    parser.add_argument("--items", type=int, default=2048, help="responses in a turn")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """All sides, then the poisoned one."""
    rounds, items = (1, 256) if arguments.quick else (arguments.rounds, arguments.items)
    async with reward_service(arguments.output) as service:
        sides = {
            "math_dapo, gRPC": _through_grpc(service, make_items("math_dapo", 4 * items)),
            "math, gRPC": _through_grpc(service, make_items("math", items)),
            "Math-Verify, serial": _serial(make_items("math", items)[: items // SERIAL_SHARE]),
        }
        found = await take_turns(sides, rounds)
        groups = 20 if arguments.quick else 300
        healthy, poisoned = [await _latencies(service, groups, share) for share in (0.0, POISONED)]
    figures: Figures = figures_of(found) | {"math, nothing poisoned": healthy, "math, 1 % poisoned": poisoned}
    ratios = {
        "math, gRPC / (cores x serial Math-Verify)": Spread.of(
            grpc["verdicts / s"] / (service.workers * serial["verdicts / s"])
            for grpc, serial in zip(found["math, gRPC"], found["Math-Verify, serial"], strict=True)
        ),
        "math / Math-Verify, per CPU-second": ratio(
            found["math, gRPC"], found["Math-Verify, serial"], "verdicts / CPU-s"
        ),
    }
    ratios["p99, 1 % poisoned / nothing poisoned"] = Spread.of([poisoned["p99 ms"] / healthy["p99 ms"]])
    settings = {"rounds": rounds, "items": items, "batch": BATCH, "open": OPEN, "workers": service.workers}
    return Report(settings, figures, ratios, READING)


READING = (
    "Verdicts a second of wall time, client included, and a second of CPU time of the service and its workers. "
    "Milliseconds are those of a group of 16 without a poisoned item."
)


class Service:
    """A started reward service with a worker a core."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, workers: int) -> None:
        self.process, self.workers = process, workers
        self.client = RewardClient([address], deadline_seconds=120)

    def cpu_seconds(self) -> float:
        """CPU time so far of the service, the template of its workers, and the workers, those that ended too."""
        return sum(_cpu_seconds(pid) for pid in _family(self.process.pid))


@asynccontextmanager
async def reward_service(folder: Path) -> AsyncIterator[Service]:
    """A reward service of its own, ended with the block."""
    log = folder / "reward-service.log"
    workers = os.cpu_count() or 1
    settings = {
        "SLUICE_REWARD_BIND": "127.0.0.1:0",
        "SLUICE_REWARD_WORKERS": str(workers),
        "SLUICE_REWARD_TIMEOUT_SECONDS": str(LIMIT_SECONDS),
    }
    process = _start(log, settings)
    service = Service(process, await asyncio.to_thread(_address, log, process), workers)
    try:
        yield service
    finally:
        await service.client.close()
        process.terminate()
        await asyncio.to_thread(process.wait)


def _start(log: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "services.reward"]
    with log.open("wb") as sink:
        return subprocess.Popen(command, env=os.environ | settings, stderr=sink, stdout=sink)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "serving":
                return str(entry["address"])
        time.sleep(0.05)
    sys.exit(f"the reward service did not start within {START_SECONDS:g} s: see {log}")


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        tasks = [(task / "children").read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(found for children in tasks for child in children.split() for found in _family(int(child)))]


def _cpu_seconds(pid: int) -> float:
    """Of a process and of those that it has waited for; 0 for one that is gone, whose parent has waited for it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_A_SECOND


def _through_grpc(service: Service, items: Sequence[ScoreItem]) -> Side:
    async def turn() -> Measured:
        room = asyncio.Semaphore(OPEN)

        async def ask(batch: Sequence[ScoreItem]) -> None:
            async with room:
                verdicts = await service.client.score(batch)
            assert {verdict.kind for verdict in verdicts} == {VerdictKind.SCORED}

        begun, cpu = time.monotonic(), service.cpu_seconds()
        await asyncio.gather(*(ask(items[at : at + BATCH]) for at in range(0, len(items), BATCH)))
        seconds, spent = time.monotonic() - begun, service.cpu_seconds() - cpu
        return _rates(len(items), seconds, spent, service.workers)

    return turn


def _rates(items: int, seconds: float, spent: float, cores: int) -> Measured:
    return {
        "verdicts / s": items / seconds,
        "verdicts / s / core": items / seconds / cores,
        "verdicts / CPU-s": items / spent,
    }


def _serial(items: Sequence[ScoreItem]) -> Side:
    import math_verify  # type: ignore[import-untyped]  # the library has no types

    logging.getLogger("math_verify").setLevel(logging.ERROR)

    async def turn() -> Measured:
        begun, cpu = time.monotonic(), time.process_time()
        for item in items:
            truth = math_verify.parse(f"${item.ground_truth}$", parsing_timeout=None)
            answer = math_verify.parse(item.response, parsing_timeout=None)
            math_verify.verify(truth, answer, timeout_seconds=None)
        seconds, spent = time.monotonic() - begun, time.process_time() - cpu
        return _rates(len(items), seconds, spent, 1)

    return turn


async def _latencies(service: Service, groups: int, poisoned: float) -> Measured:
    """Latency of healthy groups, four open at a time, while such a share of all items never ends."""
    numbers = random.Random(2)
    poison = ScoreItem("poison/0", "regex", "p", "a" * 50, "(a+)+b", "{}", 1)
    items = make_items("math", groups * GROUP)
    room = asyncio.Semaphore(4)
    healthy: list[float] = []

    async def ask(at: int) -> None:
        group = [poison if numbers.random() < poisoned else item for item in items[at : at + GROUP]]
        async with room:
            begun = time.monotonic()
            await service.client.score(group)
            if poison not in group:
                healthy.append(time.monotonic() - begun)

    await asyncio.gather(*(ask(at) for at in range(0, len(items), GROUP)))
    healthy.sort()
    return {
        "p50 ms": 1000 * healthy[len(healthy) // 2],
        "p99 ms": 1000 * healthy[min(len(healthy) - 1, int(0.99 * len(healthy)))],
    }


def make_items(verifier: str, count: int) -> list[ScoreItem]:
    """Responses with a final line `Answer: $…$`, half of them right."""
    numbers = random.Random(1)
    return [_item(verifier, at, numbers) for at in range(count)]


def _item(verifier: str, at: int, numbers: random.Random) -> ScoreItem:
    truth = _answer(numbers)
    answer = truth if numbers.random() < 0.5 else _answer(numbers)
    return ScoreItem(
        id=f"bench/{at // GROUP}/{at % GROUP}",
        data_source=verifier,
        prompt="How many are there?",
        response=f"{REASONING}\n\nAnswer: ${answer}$",
        ground_truth=truth,
        extra_info="{}",
        response_length=200,
    )


def _answer(numbers: random.Random) -> str:
    a, b, c = (numbers.randint(2, 999) for _ in range(3))
    forms = [str(a)] * 6 + [f"{a},{100 + b % 900}", f"{a}.{b}", f"-{a}", f"\\frac{{{a}}}{{{b}}}", f"{a}\\%"]
    forms += [f"{a}\\sqrt{{{b}}}", f"x^2 + {a}x - {b}", f"\\frac{{{a}\\pi}}{{{b}}}", f"({a}, {b})", f"[{-a}, {b})"]
    forms += [f"\\{{{a}, {b}, {c}\\}}", f"{a} + {b}i", f"2^{{{a % 50}}}", f"e^{{{a % 9}x}} + {b}"]
    return numbers.choice(forms)


if __name__ == "__main__":
    main()
