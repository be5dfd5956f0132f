"""One worker process as the pool sees it: start, send a batch, read results, see what it is at, kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import socket
import time
from collections.abc import Collection, Sequence

from services.reward.forge import Forge
from services.reward.worker import LENGTH, OUT_OF_MEMORY, PROGRESS, Result
from sluice.errors import ConfigError, TransientError, WaitTimeoutError
from sluice.types import ScoreItem


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
    """A started worker; `labels` gives each verifier's name its label, `unprepared` names those that it would first
    have to import for seconds. Made by `start`."""

    def __init__(self, forge: Forge, progress: mmap.mmap, transport: asyncio.Transport, frames: _Frames) -> None:
        self._forge, self._progress, self._transport, self._frames = forge, progress, transport, frames
        self._sent_at = time.monotonic()
        self.pid = 0
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.labels: dict[str, str] = {}
        self.unprepared: frozenset[str] = frozenset()

    @classmethod
    async def start(cls, forge: Forge, seconds: float) -> WorkerProcess:
        """Start a process and wait, at most `seconds`, until its verifiers are loaded.

        Raises:
            ConfigError: a verifier of the allow-list cannot be loaded.
            WaitTimeoutError: it did not greet in time.
            TransientError: the template is gone, or the process died first, e.g. because its memory limit does not
                even hold the verifiers' imports.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        progress_fd = os.memfd_create("progress")
        os.ftruncate(progress_fd, PROGRESS.size)
        progress = mmap.mmap(progress_fd, PROGRESS.size)
        transport, frames = await asyncio.get_running_loop().create_connection(_Frames, sock=ours)
        worker = cls(forge, progress, transport, frames)
        try:
            async with asyncio.timeout(seconds):
                worker.pid, worker._end = await forge.fork(theirs, progress_fd)
                theirs.close()
                await worker._greet()
        except TimeoutError:
            await worker.kill()
            raise WaitTimeoutError("reward worker start", seconds, "SLUICE_REWARD_START_SECONDS") from None
        except BaseException:
            await worker.kill()
            raise
        finally:
            theirs.close()
            os.close(progress_fd)
        return worker

    @property
    def ended(self) -> bool:
        return self._end.done()

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
        self._transport.close()
        if self.pid:
            # One that was forked just now does not lead its group yet; one that has ended may have left others in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if not self._end.done():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            await asyncio.wait([self._end])
            self._forge.forget(self.pid)
        self._progress.close()

    async def _greet(self) -> None:
        greeting = json.loads(await self._message(None))
        if "error" in greeting:
            raise ConfigError(greeting["error"])
        self.labels, self.unprepared = greeting["verifiers"], frozenset(greeting["unprepared"])

    async def _message(self, seconds: float | None) -> bytes:
        async with asyncio.timeout(seconds):
            message = await self._frames.messages.get()
        if message is None:
            raise WorkerEndedError(await self._epitaph())
        return message

    async def _epitaph(self) -> str:
        status = await asyncio.shield(self._end)
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
