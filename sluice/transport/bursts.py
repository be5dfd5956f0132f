"""Many messages on their way at once, stored or fetched: what rollouts and prompts need, which come by the dozen.

The client's own request makes a future, a timer and a random name for each message, which costs more than sending 40
kB. Here a burst has one inbox and one deadline, which starts anew with each answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import NamedTuple, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import APIError

Hear = Callable[[int, Msg], None]
BURST_MESSAGES = 256
BURST_BYTES = 8 << 20
"""So much at once keeps the server busy; what is more waits its turn here instead of in the connection's buffer."""
NO_RESPONDERS, NOT_FOUND, END_OF_BATCH = "503", "404", "204"


class Message(NamedTuple):
    """What is to be stored."""

    subject: str
    payload: bytes
    headers: dict[str, str]


class Answers:
    """Hears the server's answers on one subscription, and hands each to whoever expects it."""

    def __init__(self, client: Client) -> None:
        self._prefix = client.new_inbox() + "."
        self._names = count()
        self._hearers: dict[str, Hear] = {}

    @classmethod
    async def open(cls, client: Client) -> Self:
        """Subscribed for as long as the connection lives."""
        answers = cls(client)
        await client.subscribe(answers._prefix + ">", cb=answers._take, pending_bytes_limit=0)
        return answers

    @contextmanager
    def expected(self, hear: Hear) -> Iterator[str]:
        """An inbox: what comes to it followed by a number is given to `hear`, with that number."""
        name = str(next(self._names))
        self._hearers[name] = hear
        try:
            yield f"{self._prefix}{name}."
        finally:
            del self._hearers[name]

    async def _take(self, message: Msg) -> None:
        name, _, number = message.subject.removeprefix(self._prefix).partition(".")
        if hear := self._hearers.get(name):  # an answer that came too late has nobody who expects it
            hear(int(number), message)


class Burst:
    """Requests whose answers are waited for together; an answer is as good as a sign of life of the others.

    Args:
        seconds: TimeoutError when no answer came for so long.
    """

    def __init__(self, client: Client, answers: Answers, seconds: float) -> None:
        self._client, self._answers, self._seconds = client, answers, seconds

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
                sequences[number] = _stored_at(answer)
            except nats.errors.Error as error:
                faults.append(error)
            missing.discard(number)
            return not missing

        if not missing:
            return
        async with self._answered(hear) as inbox:
            for number in sorted(missing):
                subject, payload, headers = messages[number]
                await self._client.publish(subject, payload, reply=f"{inbox}{number}", headers=headers)
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
        request = json.dumps({"seq": first, "batch": sequences.stop - first}).encode()
        async with self._answered(hear) as inbox:
            await self._client.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=f"{inbox}0")
        if faults:
            raise faults[0]

    @asynccontextmanager
    async def _answered(self, hear: Callable[[int, Msg], bool]) -> AsyncIterator[str]:
        """The inbox of requests that are made inside; left when `hear` has said that it has heard all."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        async with asyncio.timeout(self._seconds) as limit:

            def take(number: int, answer: Msg) -> None:
                if hear(number, answer) and not done.done():
                    done.set_result(None)
                if not limit.expired():
                    limit.reschedule(loop.time() + self._seconds)

            with self._answers.expected(take) as inbox:
                yield inbox
                await done


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


def _stored_at(answer: Msg) -> int:
    """Raises: nats.errors.Error: the server refused it."""
    if status := (answer.headers or {}).get("Status"):
        raise _refusal(status, answer.headers or {})
    said = json.loads(answer.data)
    if "error" in said:
        raise APIError.from_error(said["error"])
    return int(said["seq"])


def _refusal(status: str, headers: dict[str, str]) -> nats.errors.Error:
    if status == NO_RESPONDERS:
        return nats.errors.NoRespondersError()
    return APIError(code=int(status), description=str(headers.get("Description", "")))
