"""Requests to the server, many on their way at once: rollouts and prompts are stored and fetched by the dozen.

The client's own request makes a future, a timer and a random name for each message, which costs more than sending 40
kB. Here a burst has one inbox, and its patience starts anew with each answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import APIError

Hear = Callable[[int, Msg], bool]
"""Gets an answer and the number of what it answers; says whether nothing more is to come."""
BURST_MESSAGES = 256
BURST_BYTES = 8 << 20
"""So much at once keeps the server busy; what is more waits its turn here instead of in the connection's buffer."""
AWAY_SECONDS = 0.05
"""Between two looks whether a lost connection is back."""
NO_RESPONDERS, NOT_FOUND, END_OF_BATCH = "503", "404", "204"


class Message(NamedTuple):
    """What is to be stored."""

    subject: str
    payload: bytes
    headers: dict[str, str] | None = None


@dataclass(slots=True)
class _Expected:
    """Somebody who waits until `all_heard`, which is false in the end if nothing came for too long."""

    hear: Hear
    all_heard: asyncio.Future[bool]
    heard_at: float


class Answers:
    """Hears the server's answers on one subscription, and hands each to whoever expects it.

    Args:
        seconds: whoever has not heard anything for so long is let go, up to a quarter later.
    """

    def __init__(self, client: Client, seconds: float) -> None:
        self._client, self._prefix = client, client.new_inbox() + "."
        self._names = count()
        self._expected: dict[str, _Expected] = {}
        self.seconds = seconds
        self._looking: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()  # asking for it each time costs a system call

    @classmethod
    async def open(cls, client: Client, seconds: float) -> Self:
        """Subscribed for as long as the connection lives."""
        answers = cls(client, seconds)
        await client.subscribe(answers._prefix + ">", cb=answers._take, pending_bytes_limit=0)
        return answers

    async def to(self, send: Callable[[str], Awaitable[None]], hear: Hear) -> None:
        """Have requests sent, and wait for their answers: what comes to the inbox that `send` is given, followed by a
        number, is given to `hear`, with that number.

        Raises:
            TimeoutError: nothing came for `seconds`.
        """
        await self._connected()
        name = str(next(self._names))
        expected = self._expected[name] = _Expected(hear, self._loop.create_future(), self._loop.time())
        if self._looking is None:
            self._look()
        try:
            await send(f"{self._prefix}{name}.")
            if not await expected.all_heard:
                raise TimeoutError(f"no answer for {self.seconds:g} s")
        finally:
            del self._expected[name]

    async def _connected(self) -> None:
        """Send nothing while the connection is lost: the client would keep it, once for each time that it is asked
        again, until it takes no more. One that was closed for good refuses what is sent.

        Raises:
            TimeoutError: it is not back within `seconds`.
        """
        give_up_at = self._loop.time() + self.seconds
        while not (self._client.is_connected or self._client.is_closed):
            if self._loop.time() >= give_up_at:
                raise TimeoutError(f"no connection for {self.seconds:g} s")
            await asyncio.sleep(AWAY_SECONDS)

    async def _take(self, message: Msg) -> None:
        name, _, number = message.subject.removeprefix(self._prefix).partition(".")
        if expected := self._expected.get(name):  # an answer that came too late has nobody who expects it
            expected.heard_at = self._loop.time()
            if expected.hear(int(number), message) and not expected.all_heard.done():
                expected.all_heard.set_result(True)

    def _look(self) -> None:
        """Let go whoever has waited too long, and look again while somebody waits: a timer for each would cost more."""
        for expected in self._expected.values():
            if self._loop.time() - expected.heard_at >= self.seconds and not expected.all_heard.done():
                expected.all_heard.set_result(False)
        self._looking = self._loop.call_later(self.seconds / 4, self._look) if self._expected else None


class Burst:
    """Requests whose answers are waited for together; an answer is as good as a sign of life of the others."""

    def __init__(self, client: Client, answers: Answers) -> None:
        self._client, self._answers = client, answers

    async def purge(self, stream: str, subject: str, before: int | None = None) -> None:
        """Remove from `stream` all that it holds of `subject`, or what lies below the stream sequence `before`.

        Raises:
            nats.errors.Error, TimeoutError: the server refused or did not answer.
        """
        faults: list[nats.errors.Error] = []

        def hear(_: int, answer: Msg) -> bool:
            try:
                _said(answer)
            except nats.errors.Error as error:
                faults.append(error)
            return True

        asked = {"filter": subject} | ({} if before is None else {"seq": before})
        await self._request(f"$JS.API.STREAM.PURGE.{stream}", asked, hear)
        if faults:
            raise faults[0]

    async def store(self, messages: Sequence[Message], sequences: dict[int, int]) -> None:
        """Store the messages that have no stream sequence in `sequences` yet, and enter theirs.

        Raises:
            nats.errors.Error, TimeoutError: of those that are still missing there, at least one was refused or not
                answered; whether that one is stored is unknown.
        """
        faults: list[nats.errors.Error] = []
        missing = {number for number in range(len(messages)) if number not in sequences}

        def hear(number: int, answer: Msg) -> bool:
            try:
                sequences[number] = int(_said(answer)["seq"])
            except nats.errors.Error as error:
                faults.append(error)
            missing.discard(number)
            return not missing

        async def send(inbox: str) -> None:
            for number in sorted(missing):
                subject, payload, headers = messages[number]
                await self._client.publish(subject, payload, reply=f"{inbox}{number}", headers=headers)

        if missing:
            await self._answers.to(send, hear)
        if faults:
            raise faults[0]

    async def fetch(self, stream: str, sequences: range, found: dict[int, bytes]) -> None:
        """Enter into `found` the messages from the first missing one of `sequences` on, as many as the server gives.

        A server before 2.11 gives one at a time.

        Raises:
            nats.errors.Error, TimeoutError: not all that this request would give are there.
        """
        faults: list[nats.errors.Error] = []
        first = next((sequence for sequence in sequences if sequence not in found), None)

        def hear(_: int, answer: Msg) -> bool:
            headers = answer.headers or {}
            if status := headers.get("Status"):
                if status not in (NOT_FOUND, END_OF_BATCH):
                    faults.append(_refusal(status, headers))
                return True
            sequence = int(headers["Nats-Sequence"])
            if sequence in sequences:
                found[sequence] = answer.data
            return "Nats-Num-Pending" not in headers

        if first is None:
            return
        asked = {"seq": first, "batch": sequences.stop - first}
        await self._request(f"$JS.API.DIRECT.GET.{stream}", asked, hear)
        if faults:
            raise faults[0]

    async def _request(self, subject: str, asked: dict[str, Any], hear: Hear) -> None:
        request = json.dumps(asked).encode()
        await self._answers.to(lambda inbox: self._client.publish(subject, request, reply=f"{inbox}0"), hear)


def bursts(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Consecutive stretches of `messages`, each small enough to be on its way at once."""
    start, size = 0, 0
    for at, message in enumerate(messages):
        if at > start and (at - start == BURST_MESSAGES or size + len(message.payload) > BURST_BYTES):
            yield messages[start:at]
            start, size = at, 0
        size += len(message.payload)
    if messages:
        yield messages[start:]


def runs(sequences: Sequence[int]) -> Iterator[range]:
    """The same sequences as ranges without gaps, in order."""
    start = end = -1
    for sequence in sorted(set(sequences)):
        if sequence != end:
            if end > start:
                yield range(start, end)
            start = sequence
        end = sequence + 1
    if end > start:
        yield range(start, end)


def _said(answer: Msg) -> dict[str, Any]:
    """Raises: nats.errors.Error: the server refused what was asked."""
    if status := (answer.headers or {}).get("Status"):
        raise _refusal(status, answer.headers or {})
    said: dict[str, Any] = json.loads(answer.data)
    if "error" in said:
        raise APIError.from_error(said["error"])
    return said


def _refusal(status: str, headers: dict[str, str]) -> nats.errors.Error:
    if status == NO_RESPONDERS:
        return nats.errors.NoRespondersError()
    return APIError(code=int(status), description=str(headers.get("Description", "")))
