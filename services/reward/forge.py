"""The template process as the pool sees it: ask for a worker, ask for a library, hear of workers that ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from dataclasses import asdict

from services.reward.template import PACKET
from services.reward.worker import WorkerLimits
from sluice.errors import ConfigError, TransientError


class ForgeEndedError(TransientError):
    """The template process is gone, and all its workers with it."""


class Forge:
    """A started template. Requests are answered in their order; `ended` futures resolve to exit statuses."""

    def __init__(self, limits: WorkerLimits) -> None:
        """Start the process; must be called inside a running loop."""
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._waiting: deque[asyncio.Future[dict[str, object]]] = deque()
        self._ends: dict[int, asyncio.Future[int]] = {}
        command = [sys.executable, "-m", "services.reward.template", str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(limits))],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._loop.add_reader(self._control, self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._control.fileno() < 0

    async def fork(self, worker: socket.socket, progress_fd: int) -> tuple[int, asyncio.Future[int]]:
        """A new worker's pid, and the future of its exit status.

        Raises:
            ForgeEndedError: the template is gone.
        """
        answer = await self._ask({"fork": ""}, [worker.fileno(), progress_fd])
        pid = int(str(answer["pid"]))
        return pid, self._ends.setdefault(pid, self._loop.create_future())

    async def prepare(self, verifier: str) -> None:
        """Import what a built-in verifier needs; workers forked from now on have it.

        Raises:
            ConfigError: it cannot be imported.
            ForgeEndedError: the template is gone.
        """
        error = (await self._ask({"prepare": verifier}, []))["error"]
        if error:
            raise ConfigError(str(error))

    async def close(self) -> None:
        """End the template; the kernel ends its workers."""
        if not self.gone:
            self._lose()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)

    async def _ask(self, message: object, descriptors: list[int]) -> dict[str, object]:
        if self.gone:
            raise ForgeEndedError("the template process of the workers has ended")
        answer: asyncio.Future[dict[str, object]] = self._loop.create_future()
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise ForgeEndedError(f"the template process of the workers does not listen: {error}") from None
        self._waiting.append(answer)
        return await answer

    def _read(self) -> None:
        try:
            packet = self._control.recv(PACKET)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        if not packet:
            self._lose()
            return
        message = json.loads(packet)
        if "ended" in message:
            self._set_ended(message["ended"], message["status"])
        elif not (answer := self._waiting.popleft()).done():
            answer.set_result(message)

    def _set_ended(self, pid: int, status: int) -> None:
        """Kept until somebody asks: a worker may end before its pid has been heard of."""
        end = self._ends.setdefault(pid, self._loop.create_future())
        if not end.done():
            end.set_result(status)

    def forget(self, pid: int) -> None:
        """Nobody will ask for this worker again."""
        self._ends.pop(pid, None)

    def _lose(self) -> None:
        self._loop.remove_reader(self._control)
        self._control.close()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ForgeEndedError("the template process of the workers has ended"))
        self._waiting.clear()
        for pid in list(self._ends):
            self._set_ended(pid, -signal.SIGKILL)
