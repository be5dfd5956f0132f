"""A lean HTTP/1.1 server for the simulated engine: JSON in, a whole body out, connections that are used again.

A general server spends more time on a request than the engine has to simulate.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

HEAD_END = b"\r\n\r\n"


class Reply(NamedTuple):
    """What a handler answers."""

    content: bytes = b""
    status: int = 200
    kind: str = "application/json"


Handler = Callable[[Any], Awaitable[Reply]]
"""Gets the body of a request, or None where it has none. It is cancelled when its client goes away."""
Routes = Mapping[str, Handler]
"""By method and path, as in `GET /health`."""


def as_json(value: object, status: int = 200) -> Reply:
    return Reply(json.dumps(value, separators=(",", ":")).encode(), status)


async def serve(routes: Routes, host: str, port: int) -> None:
    """Listen until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    server = await loop.create_server(lambda: _Connection(routes), host, port, backlog=2048)
    await stop.wait()
    server.close()


class _Connection(asyncio.Protocol):
    """One request after the other; what breaks HTTP, or its handler, ends the connection."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._received = bytearray()
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answering is None:
            self._begin()

    def _begin(self) -> None:
        """Answer the next request, once it is here whole."""
        head, end, _ = self._received.partition(HEAD_END)
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        start = len(head) + len(HEAD_END)
        stop = start + int(headers.get("content-length", 0))
        if len(self._received) < stop:
            return
        body = bytes(self._received[start:stop])
        del self._received[:stop]
        answering = self._answer(first.rpartition(" ")[0], body, headers.get("connection", "") != "close")
        self._answering = asyncio.get_running_loop().create_task(answering)

    async def _answer(self, route: str, body: bytes, keep: bool) -> None:
        done = False
        try:
            handler = self._routes.get(route)
            reply = Reply(status=404) if handler is None else await handler(json.loads(body) if body else None)
            head = f"HTTP/1.1 {reply.status} -\r\nContent-Type: {reply.kind}\r\nContent-Length: {len(reply.content)}"
            self._transport.write(head.encode() + HEAD_END + reply.content)
            done = True
        finally:
            self._answering = None
            if not (keep and done):
                self._transport.close()
        self._begin()
