"""A worker process: takes batches of checks from the pool, one at a time, and answers with results.

Forked by `services.reward.template`, because a killed worker must be replaced quickly. Frames in both directions are a
4-byte length and JSON; what a check prints goes to standard error.

The item being judged, and when it began, stand in memory that the pool can read: a check that hangs inside C code
holds the interpreter, so the worker itself could not tell any more.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import mmap
import os
import resource
import socket
import struct
import sys
import time
from dataclasses import dataclass

from services.reward.verifiers.code import SANDBOX_VARIABLE
from services.reward.verifiers.outcome import MAX_EXTRACTED, to_outcome
from services.reward.verifiers.registry import CHECK, Verifier, heavy_names, load_verifiers
from sluice.errors import ConfigError
from sluice.types import ScoreItem

PROGRESS = struct.Struct("=qd")
"""Index of the running item in its batch, and its start on the system's monotonic clock."""
LENGTH = struct.Struct("=I")
OUT_OF_MEMORY = 77
"""Exit status after a check ran into the memory limit: what an earlier check left behind must not harm the next."""
FLUSH_SECONDS = 0.02
MAX_MESSAGE = 500

Result = tuple[int, float, float | None, float | None, str, str]
"""Index in the batch, seconds, acc, score, extracted, error message."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker process may use. `verifiers` is the allow-list; `sandbox` runs `code`, empty where that is off."""

    memory_bytes: int
    start_seconds: float
    verifiers: tuple[str, ...]
    sandbox: str = ""


def work(pool: socket.socket, progress_fd: int, limits: WorkerLimits) -> None:
    """Limit this process, load the verifiers, greet the pool, then judge until the pool goes away."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ[SANDBOX_VARIABLE] = limits.sandbox
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        verifiers = load_verifiers(limits.verifiers, bool(limits.sandbox))
    except ConfigError as error:
        _send(pool, {"error": str(error)})
        return
    missing = [name for name, module in heavy_names().items() if module not in sys.modules]
    unprepared = [*missing, *(CHECK + name for name in missing)]
    labels = {name: verifier.label for name, verifier in verifiers.items()}
    _send(pool, {"verifiers": labels, "unprepared": unprepared})
    progress = mmap.mmap(progress_fd, PROGRESS.size)
    with asyncio.Runner() as runner:
        while (batch := _receive(pool)) is not None:
            _work(batch, verifiers, _Answers(pool, progress, runner))


@dataclass(frozen=True, slots=True)
class _Answers:
    """Where a batch's results go, and what they need on the way."""

    pool: socket.socket
    progress: mmap.mmap
    runner: asyncio.Runner


def _work(batch: list[list[object]], verifiers: dict[str, Verifier], answers: _Answers) -> None:
    """Judge a batch; results leave in groups, so that cheap checks share a message and slow ones are not held back."""
    results: list[Result] = []
    flushed = time.monotonic()
    for index, (name, *fields) in enumerate(batch):
        started = time.monotonic()
        PROGRESS.pack_into(answers.progress, 0, index, started)
        try:
            results.append(_judge(index, started, verifiers[str(name)], ScoreItem(*fields), answers.runner))  # type: ignore[arg-type]  # fields come from a ScoreItem
        except MemoryError:
            _send(answers.pool, results)
            os._exit(OUT_OF_MEMORY)
        if time.monotonic() - flushed > FLUSH_SECONDS:
            _send(answers.pool, results)
            results, flushed = [], time.monotonic()
    _send(answers.pool, results)


def _judge(index: int, started: float, verifier: Verifier, item: ScoreItem, runner: asyncio.Runner) -> Result:
    try:
        value = verifier.verify(item)
        outcome = to_outcome(runner.run(value) if inspect.iscoroutine(value) else value)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # a verifier is somebody else's code: whatever it raises is its verdict
        message = f"{verifier.name} raised {type(error).__name__}: {error}"
        return index, time.monotonic() - started, None, None, "", message[:MAX_MESSAGE]
    return index, time.monotonic() - started, outcome.acc, outcome.score, outcome.extracted[:MAX_EXTRACTED], ""


def _send(pool: socket.socket, message: object) -> None:
    payload = json.dumps(message).encode()
    pool.sendall(LENGTH.pack(len(payload)) + payload)


def _receive(pool: socket.socket) -> list[list[object]] | None:
    """The next batch, or None once the pool has gone."""
    header = pool.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(header) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(header)
    payload = bytearray(size)
    view = memoryview(payload)
    while view:
        count = pool.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    batch: list[list[object]] = json.loads(payload)
    return batch
