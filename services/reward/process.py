"""One worker process as the pool sees it: start, send a batch, read results, see what it is at, kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from services.reward.worker import LENGTH, OUT_OF_MEMORY, PROGRESS, Result
from sluice.errors import ConfigError, TransientError, WaitTimeoutError
from sluice.types import ScoreItem


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker process may use. `verifiers` is the allow-list, entries `name=module:function`."""

    memory_bytes: int
    start_seconds: float
    verifiers: tuple[str, ...]


class WorkerEndedError(TransientError):
    """The process ended by itself or was killed from outside; the text says how."""


class _Frames(asyncio.Protocol):
    """Cuts the byte stream of a worker into messages; None marks its end."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            end = LENGTH.size + size
            if len(self._buffer) < end:
                return
            self.messages.put_nowait(bytes(self._buffer[LENGTH.size : end]))
            del self._buffer[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        self.messages.put_nowait(None)


class WorkerProcess:
    """A started worker; `labels` gives each verifier's name its label. Made by `start`."""

    def __init__(
        self, process: subprocess.Popen[bytes], progress: mmap.mmap, transport: asyncio.Transport, frames: _Frames
    ) -> None:
        self._process, self._progress, self._transport, self._frames = process, progress, transport, frames
        self._sent_at = time.monotonic()
        self.labels: dict[str, str] = {}

    @classmethod
    async def start(cls, limits: WorkerLimits) -> WorkerProcess:
        """Start a process and wait until its verifiers are loaded.

        Raises:
            ConfigError: a verifier of the allow-list cannot be loaded.
            WaitTimeoutError: it did not greet within `start_seconds`.
            WorkerEndedError: it died first, e.g. because its memory limit does not even hold the verifiers' imports.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        progress_fd = os.memfd_create("progress")
        os.ftruncate(progress_fd, PROGRESS.size)
        progress = mmap.mmap(progress_fd, PROGRESS.size)
        try:
            process = _spawn(limits, theirs.fileno(), progress_fd)
        finally:
            theirs.close()
            os.close(progress_fd)
        loop = asyncio.get_running_loop()
        transport, frames = await loop.create_connection(_Frames, sock=ours)
        worker = cls(process, progress, transport, frames)
        try:
            await worker._greet(limits)
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, batch: Sequence[tuple[str, ScoreItem]]) -> None:
        """Give the worker a batch of (verifier name, item); it must have finished the one before."""
        PROGRESS.pack_into(self._progress, 0, -1, 0.0)
        self._sent_at = time.monotonic()
        payload = json.dumps([_fields(name, item) for name, item in batch]).encode()
        self._transport.write(LENGTH.pack(len(payload)) + payload)

    async def results(self, seconds: float) -> list[Result]:
        """The next results of the batch, waiting at most `seconds`.

        Raises:
            TimeoutError: none came in time.
            WorkerEndedError: the process ended, or what it sends makes no sense.
        """
        message = await self._message(seconds)
        try:
            results: list[Result] = [(*fields,) for fields in json.loads(message)]
        except (ValueError, TypeError) as error:  # a check has found the socket and written to it
            raise WorkerEndedError(f"its process sent what is no result: {error}") from error
        return results

    def running(self, unfinished: Collection[int]) -> tuple[int, float]:
        """(index in its batch, seconds so far) of the item being judged; 0 seconds while that is just changing.

        A worker that stands between items, or has not begun, counts as being at the first of the unfinished ones.
        """
        before = self._progress[:]
        index, started = PROGRESS.unpack(before)
        now = time.monotonic()
        if self._progress[:] != before:
            return min(unfinished), 0.0
        since = started if index >= 0 else self._sent_at
        return (index if index in unfinished else min(unfinished)), now - since

    async def kill(self) -> None:
        """Kill the process and whatever it started, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):  # it may have ended, and all it started too
            os.killpg(self._process.pid, signal.SIGKILL)
        self._transport.close()
        await asyncio.to_thread(self._process.wait)
        self._progress.close()

    async def _greet(self, limits: WorkerLimits) -> None:
        try:
            greeting = json.loads(await self._message(limits.start_seconds))
        except TimeoutError:
            knob = "SLUICE_REWARD_START_SECONDS"
            raise WaitTimeoutError("reward worker start", limits.start_seconds, knob) from None
        if "error" in greeting:
            raise ConfigError(greeting["error"])
        self.labels = greeting["verifiers"]

    async def _message(self, seconds: float) -> bytes:
        async with asyncio.timeout(seconds):
            message = await self._frames.messages.get()
        if message is None:
            raise WorkerEndedError(await self._epitaph())
        return message

    async def _epitaph(self) -> str:
        status = await asyncio.to_thread(self._process.wait)
        if status == OUT_OF_MEMORY:
            return "ran into the memory limit SLUICE_REWARD_MEMORY_BYTES"
        if status < 0:
            return f"its process died of signal {-status} ({signal.Signals(-status).name})"
        return f"its process exited with status {status}"


def _fields(name: str, item: ScoreItem) -> tuple[str | int, ...]:
    return (
        name,
        item.id,
        item.data_source,
        item.prompt,
        item.response,
        item.ground_truth,
        item.extra_info,
        item.response_length,
    )


def _spawn(limits: WorkerLimits, socket_fd: int, progress_fd: int) -> subprocess.Popen[bytes]:
    numbers = (socket_fd, progress_fd, os.getpid(), limits.memory_bytes)
    return subprocess.Popen(
        [sys.executable, "-m", "services.reward.worker", *map(str, numbers), *limits.verifiers],
        stdin=subprocess.DEVNULL,
        pass_fds=(socket_fd, progress_fd),
        start_new_session=True,  # so that a kill takes along whatever a check has started
    )
