"""The lean HTTP client on real sockets: every way in which a body can end, and connections that are used again."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sluice.transport import http
from sluice.transport.http import HttpBrokenError, HttpConnections

BODY = b'{"a": 1}'
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + BODY


class Server:
    """Answers each request with the next of `answers`, the last one again and again; an empty one hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0)
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                writer.write(answer)
                if not answer or b"Connection: close" in answer or b"HTTP/1.0" in answer:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(server: Server, path: str = "") -> AsyncIterator[HttpConnections]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    client = HttpConnections(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}", 1.0)
    yield client
    await client.close()
    listening.close()


@pytest.mark.parametrize(
    "answer",
    [
        LENGTH,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n"
        + BODY[:3]
        + b"\r\n5\r\n"
        + BODY[3:]
        + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY,
        b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
    ],
    ids=["length", "chunked", "close", "http/1.0"],
)
async def test_a_body_is_read_whole_however_the_server_ends_it(answer: bytes) -> None:
    server = Server(answer)
    async with serving(server, "/base") as client:
        for _ in range(2):
            got = await client.request("/generate", {"x": [1, 2]}, {"Authorization": "Bearer k"})
            assert (got.status_code, got.json(), got.route) == (200, {"a": 1}, "/generate")
    assert server.requests[0].startswith(b"POST /base/generate HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer k\r\n" in server.requests[0]
    assert server.requests[0].endswith(b'\r\n\r\n{"x":[1,2]}')
    assert server.connections == (1 if b"length" in answer.lower() or b"chunked" in answer else 2)


async def test_requests_at_the_same_time_have_a_connection_each_and_later_ones_use_them_again() -> None:
    server = Server(LENGTH)
    async with serving(server) as client:
        for _ in range(3):
            await asyncio.gather(*(client.request("/", None, {}) for _ in range(4)))
    assert server.connections == 4
    assert server.requests[0].startswith(b"GET / HTTP/1.1\r\n")


async def test_a_connection_that_lay_idle_too_long_or_was_closed_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(LENGTH, LENGTH, b"")
    async with serving(server) as client:
        await client.request("/", None, {})
        monkeypatch.setattr(http, "KEEP_SECONDS", -1.0)
        await client.request("/", None, {})
        assert server.connections == 2
        with pytest.raises(HttpBrokenError):
            await client.request("/", None, {})


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n" + BODY],
    ids=["hangs up", "no http", "ends early"],
)
async def test_what_is_not_a_whole_answer_is_none(answer: bytes) -> None:
    async with serving(Server(answer)) as client:
        with pytest.raises(HttpBrokenError):
            async with asyncio.timeout(5):
                await client.request("/", None, {})


@pytest.mark.parametrize("url", ["", "localhost:1", "ftp://h:1", "http://", "http://h:x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        HttpConnections(url, 1.0)
