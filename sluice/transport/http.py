"""A lean HTTP/1.1 client for requests that send JSON and get a whole body: what a worker asks of its engine.

A general client spends more time on a request than the worker spends on all the rest of a group, and looks through all
its connections each time, of which there are hundreds.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

KEEP_SECONDS = 2.0
"""An idle connection is not used again after this; servers close theirs after five seconds or later, so that none is
closed under a request."""
BUFFER_BYTES = 1 << 20
HEAD_END = b"\r\n\r\n"


class HttpBrokenError(Exception):
    """The connection could not be made or broke, or what came is not HTTP."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response, whole."""

    route: str
    status_code: int
    content: bytes

    def json(self) -> Any:
        """Raises: ValueError: the body is no JSON."""
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0

    @property
    def fresh(self) -> bool:
        """It was used a moment ago, and the other end has not closed it."""
        open_ = not (self.reader.at_eof() or self.writer.is_closing())
        return open_ and time.monotonic() - self.idle_since < KEEP_SECONDS


class HttpConnections:
    """Connections to one server, made when needed and used again.

    Raises: ValueError: `url` is no http or https address.
    """

    def __init__(self, url: str, connect_seconds: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it must be http://host:port or https://host:port")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._authority, self._path = parts.netloc.rpartition("@")[2], parts.path
        self._connect_seconds = connect_seconds
        self._idle: deque[_Connection] = deque()

    async def request(self, route: str, body: Any, headers: Mapping[str, str]) -> HttpAnswer:
        """POST `body` as JSON to `route`, or GET it when `body` is None. The caller sets the deadline.

        Raises: HttpBrokenError.
        """
        connection = self._take() or await self._connect()
        kept = False
        try:
            connection.writer.write(self._head_and_body(route, body, headers))
            await connection.writer.drain()
            status, kept, content = await _response(connection.reader)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise HttpBrokenError(f"{type(error).__name__}: {error}") from None
        finally:
            if kept:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.writer.close()
        return HttpAnswer(route, status, content)

    async def close(self) -> None:
        """Close what is idle; what is in use closes with its request."""
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    def _take(self) -> _Connection | None:
        """The connection used last, so that those that are not needed grow old and are closed."""
        while self._idle and not self._idle[0].fresh:
            self._idle.popleft().writer.close()
        while self._idle:
            if (connection := self._idle.pop()).fresh:
                return connection
            connection.writer.close()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_seconds):
                opened = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=BUFFER_BYTES)
        except TimeoutError:
            raise HttpBrokenError(f"no connection within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise HttpBrokenError(str(error)) from None
        return _Connection(*opened)

    def _head_and_body(self, route: str, body: Any, headers: Mapping[str, str]) -> bytes:
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        lines = [f"{'GET' if body is None else 'POST'} {self._path}{route} HTTP/1.1", f"Host: {self._authority}"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("latin-1") + HEAD_END + content


async def _response(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """Status, whether the connection can be used again, and body.

    Raises: EOFError, ValueError, asyncio.LimitOverrunError: it ended early, or is not HTTP/1.
    """
    head = (await reader.readuntil(HEAD_END)).decode("latin-1")
    status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    version, status, *_ = status_line.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{status_line[:80]!r} is no HTTP/1 response")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    keeps = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return int(status), keeps, await _chunks(reader)
    if "content-length" in headers:
        return int(status), keeps, await reader.readexactly(int(headers["content-length"]))
    return int(status), False, await reader.read()


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailing headers, which nobody needs
    return b"".join(parts)
