"""A TCP proxy between a service and NATS that can hold one message back, lose its answer, send it twice, or part them.

What the server delivers can come late, twice, or not at all, by chance.

It reads NATS's client protocol only as far as frames go, so a test can act at the very moment between two messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import random
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum, auto
from urllib.parse import urlsplit

from sluice.cancellation import end_tasks

PATIENCE = 30.0
"""Seconds within which what a trap waits for must have come by."""


class Do(StrEnum):
    """What happens to the message that a trap catches."""

    HOLD = auto()
    """It waits, and so does all that its sender sends after it, until `release` or `drop`."""
    LOSE_ANSWER = auto()
    """The server gets it, the sender never hears so."""
    TWICE = auto()
    """The server gets it twice in a row."""


@dataclass
class Trap:
    """Catches the first message that is published on `subject` (shell wildcards)."""

    subject: str
    do: Do
    on_catch: Callable[[], None]
    caught: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """The sender may go on."""
    forward: bool = True

    async def wait(self) -> None:
        """Until it has caught its message."""
        async with asyncio.timeout(PATIENCE):
            await self.caught.wait()

    def release(self) -> None:
        """Let the message, and what came after it, reach the server."""
        self.settled.set()

    def drop(self) -> None:
        """The message never arrives; what came after it does."""
        self.forward = False
        self.settled.set()


LATE_SECONDS = 0.05
"""A late message is overtaken by the next one, or comes after so long if there is none."""


class Delivery(StrEnum):
    """How a message that the server sends reaches its client."""

    IN_TIME = auto()
    LATE = auto()
    TWICE = auto()
    LOST = auto()


@dataclass
class Disorder:
    """Chooses at random how messages on `subjects` (shell wildcards) are delivered."""

    subjects: tuple[str, ...]
    choices: tuple[Delivery, ...]
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    counts: Counter[Delivery] = field(default_factory=Counter)
    """How often each was chosen, for the test to see that it was."""

    def choose(self, subject: str) -> Delivery | None:
        """None for a message on another subject."""
        if not any(fnmatch.fnmatchcase(subject, pattern) for pattern in self.subjects):
            return None
        chosen = self.rng.choice(self.choices)
        self.counts[chosen] += 1
        return chosen


class Proxy:
    """Give `url` to the service that is to be disturbed."""

    def __init__(self, nats_url: str) -> None:
        target = urlsplit(nats_url)
        self._host, self._port = str(target.hostname), int(target.port or 4222)
        self._traps: list[Trap] = []
        self._lost_inboxes: set[str] = set()
        self._disorder = Disorder((), ())
        self._late: dict[StreamWriter, bytes] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"

    async def stop(self) -> None:
        self._server.close()
        await end_tasks(list(self._tasks))

    def catch(self, subject: str, do: Do = Do.HOLD, on_catch: Callable[[], None] = lambda: None) -> Trap:
        """Set a trap for one message; `on_catch` is called at once, before anything else moves."""
        trap = Trap(subject, do, on_catch)
        self._traps.append(trap)
        return trap

    def disorder(self, *subjects: str, choices: tuple[Delivery, ...] = tuple(Delivery)) -> Disorder:
        """From now on, deliver messages on these subjects in one of these ways each."""
        self._disorder = Disorder(subjects, choices)
        return self._disorder

    def part(self) -> None:
        """No byte crosses any more, in either direction; connections stay open, as in a partition."""
        self._open.clear()

    def heal(self) -> None:
        """What was held back by `part` arrives now."""
        self._open.set()

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):  # either side may be killed at any time
                server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
                await self._pump(reader, writer, server_reader, server_writer)
        finally:
            writer.close()

    async def _pump(
        self, reader: StreamReader, writer: StreamWriter, server_reader: StreamReader, server_writer: StreamWriter
    ) -> None:
        """Both directions, each to its own end: what a client sent before it was killed still reaches the server."""
        up = asyncio.create_task(self._forward(reader, server_writer, self._to_server))
        down = asyncio.create_task(self._forward(server_reader, writer, self._to_client))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            if down.done():
                up.cancel()
            await asyncio.gather(up, return_exceptions=True)
        finally:
            await end_tasks([up, down])
            server_writer.close()

    async def _forward(
        self, source: StreamReader, sink: StreamWriter, look: Callable[[bytes, StreamWriter], FrameFate]
    ) -> None:
        while frame := await read_frame(source):
            await self._open.wait()
            fate = look(frame, sink)
            if isinstance(fate, Trap):
                await fate.settled.wait()
                fate = int(fate.forward)
            sink.write(frame * fate)
            await sink.drain()

    def _to_server(self, frame: bytes, _: StreamWriter) -> FrameFate:
        parts = frame.split(b"\r\n", 1)[0].decode(errors="replace").split()
        if parts[0].upper() not in ("PUB", "HPUB"):
            return 1
        for trap in self._traps:
            if not trap.caught.is_set() and fnmatch.fnmatchcase(parts[1], trap.subject):
                trap.caught.set()
                trap.on_catch()
                return self._fate(trap, parts)
        return 1

    def _fate(self, trap: Trap, parts: list[str]) -> FrameFate:
        match trap.do:
            case Do.HOLD:
                return trap
            case Do.TWICE:
                return 2
            case Do.LOSE_ANSWER:
                self._lost_inboxes.add(parts[2])
                return 1

    def _to_client(self, frame: bytes, client: StreamWriter) -> FrameFate:
        parts = frame.split(b"\r\n", 1)[0].decode(errors="replace").split()
        if parts[0].upper() not in ("MSG", "HMSG"):
            return 1
        if parts[1] in self._lost_inboxes:
            self._lost_inboxes.discard(parts[1])
            return 0
        return self._disordered(self._disorder.choose(parts[1]), frame, client)

    def _disordered(self, chosen: Delivery | None, frame: bytes, client: StreamWriter) -> int:
        """How often the frame goes out as it comes; only a message on the same subjects overtakes one that is late."""
        times = {Delivery.TWICE: 2, Delivery.LOST: 0}.get(chosen or Delivery.IN_TIME, 1)
        if chosen is None:
            self._send_late(client)
        elif client in self._late:
            client.write(frame * times)
            self._send_late(client)
            return 0
        elif chosen is Delivery.LATE:
            self._late[client] = frame
            asyncio.get_running_loop().call_later(LATE_SECONDS, self._send_late, client)
            return 0
        return times

    def _send_late(self, client: StreamWriter) -> None:
        client.write(self._late.pop(client, b""))


FrameFate = int | Trap
"""How often a frame is passed on, or the trap that decides when."""


async def read_frame(source: StreamReader) -> bytes:
    """One frame of NATS's protocol with its payload; empty at the end of the connection."""
    try:
        line = await source.readuntil(b"\r\n")
        words = line.split()
        if words and words[0].upper() in (b"PUB", b"HPUB", b"MSG", b"HMSG"):
            return line + await source.readexactly(int(words[-1]) + 2)
        return line
    except (asyncio.IncompleteReadError, OSError):
        return b""
