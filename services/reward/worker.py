"""A worker process: takes batches of checks from the pool that started it, one at a time, and answers with results.

Run by `services.reward.process` as `python -m services.reward.worker SOCKET_FD PROGRESS_FD PARENT_PID MEMORY_BYTES
[VERIFIER ...]`. It imports little, because a killed worker must be replaced quickly. Frames in both directions are a
4-byte length and JSON; what a check prints goes to standard error.

The item being judged, and when it began, stand in memory that the pool can read: a check that hangs inside C code
holds the interpreter, so the worker itself could not tell any more.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time

from services.reward.verifiers.outcome import MAX_EXTRACTED, to_outcome
from services.reward.verifiers.registry import Verifier, load_verifiers
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


def main(arguments: list[str]) -> None:
    """Limit this process, load the verifiers, greet the pool, then work until the pool goes away."""
    socket_fd, progress_fd, parent, memory = (int(argument) for argument in arguments[:4])
    _die_with(parent)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pool = socket.socket(fileno=socket_fd)
    try:
        verifiers = load_verifiers(arguments[4:])
    except ConfigError as error:
        _send(pool, {"error": str(error)})
        return
    _send(pool, {"verifiers": {name: verifier.label for name, verifier in verifiers.items()}})
    progress = mmap.mmap(progress_fd, PROGRESS.size)
    while (batch := _receive(pool)) is not None:
        _work(batch, verifiers, pool, progress)


def _work(batch: list[list[object]], verifiers: dict[str, Verifier], pool: socket.socket, progress: mmap.mmap) -> None:
    """Judge a batch; results leave in groups, so that cheap checks share a message and slow ones are not held back."""
    results: list[Result] = []
    flushed = time.monotonic()
    for index, (name, *fields) in enumerate(batch):
        started = time.monotonic()
        PROGRESS.pack_into(progress, 0, index, started)
        try:
            results.append(_judge(index, started, verifiers[str(name)], ScoreItem(*fields)))  # type: ignore[arg-type]  # fields come from a ScoreItem
        except MemoryError:
            _send(pool, results)
            os._exit(OUT_OF_MEMORY)
        if time.monotonic() - flushed > FLUSH_SECONDS:
            _send(pool, results)
            results, flushed = [], time.monotonic()
    _send(pool, results)


def _judge(index: int, started: float, verifier: Verifier, item: ScoreItem) -> Result:
    try:
        outcome = to_outcome(verifier.verify(item))
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


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, also when a check never comes back."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
