"""Users' verifiers for the tests: each does what the response says."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sluice.types import ScoreItem


def obey(item: ScoreItem) -> object:
    """Anything that is no order is compared with the ground truth."""
    order, _, argument = item.response.partition(" ")
    if order in ORDERS:
        return ORDERS[order](argument)
    return item.response == item.ground_truth


def graded(item: ScoreItem) -> dict[str, object]:
    """Sees the whole record."""
    return {"score": item.response_length / 10, "acc": item.id == "right", "extracted": item.extra_info + item.prompt}


async def patient(item: ScoreItem) -> dict[str, object]:
    """Asks somebody else, in parallel."""
    waits = [asyncio.sleep(0.01, result=part) for part in item.response.split()]
    return {"score": len(await asyncio.gather(*waits)), "acc": 1.0}


def _hang(_: str) -> object:
    # Holds the interpreter for ages inside C code, as real patterns do.
    return re.match(r"(a+)+b", "a" * 60)


def _spin(_: str) -> object:
    while True:
        pass


def _sleep(seconds: str) -> object:
    time.sleep(float(seconds))
    return True


def _die(_: str) -> object:
    os.kill(os.getpid(), signal.SIGSEGV)
    return True


def _die_once(mark: str) -> object:
    if Path(mark).exists():
        return True
    Path(mark).touch()
    os._exit(9)


def _eat(_: str) -> object:
    return len(bytearray(1 << 40))


def _raise(_: str) -> object:
    raise LookupError("no such answer")


def _exit(_: str) -> object:
    raise SystemExit(3)


def _print(_: str) -> object:
    print("noise " * 1000)
    return True


def _leave_child(pid_file: str) -> object:
    child = subprocess.Popen(["sleep", "600"])
    Path(pid_file).write_text(str(child.pid))
    return _spin("")


ORDERS: dict[str, Callable[[str], object]] = {
    "hang": _hang,
    "spin": _spin,
    "sleep": _sleep,
    "die": _die,
    "die-once": _die_once,
    "eat": _eat,
    "raise": _raise,
    "exit": _exit,
    "print": _print,
    "leave-child": _leave_child,
}
