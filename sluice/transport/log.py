"""The fenced log: one subject of LEDGER or TRAINER, with exactly one writer at a time.

Every append states the last sequence its writer has read, so the server itself refuses a writer that was overtaken. No
message id is sent: the de-duplication window would answer a stale writer "stored" on some servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from sluice.errors import FencedError, TransientError, WireError
from sluice.transport.nats import Bus
from sluice.types import LedgerRecord, TrainerRecord
from sluice.wire import subjects
from sluice.wire.records import decode_ledger, decode_trainer, encode_ledger, encode_trainer

R = TypeVar("R")
WRONG_LAST_SEQUENCE = 10071
FETCH = 256
QUIET_SECONDS = 5.0
"""Between two looks at a consumer that has nothing to deliver: is it there, and has it delivered what did not come?"""


class _MissedError(Exception):
    """A message that the consumer has delivered is not here: lost with a connection, or overtaken by a later one."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[R]):
    """A stored record with its stream sequence and the server's time of storage."""

    sequence: int
    record: R
    time: datetime


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored record that cannot be decoded: damaged, or of a newer format than this program knows."""

    why: str
    """Names its stream and sequence."""
    time: datetime


class FencedLog(Generic[R]):
    """Read a subject to its end, then append to it as its only writer."""

    def __init__(
        self, bus: Bus, stream: str, subject: str, encode: Callable[[R], bytes], decode: Callable[[bytes], R]
    ) -> None:
        self._bus, self._stream, self._subject = bus, stream, subject
        self._encode, self._decode = encode, decode
        self.last = 0
        """Sequence of the last record read or appended: the fence of the next append."""

    async def read(self) -> list[Entry[R]]:
        """All records after `last`, to the end of the subject as it is now.

        Raises:
            WireError: one cannot be decoded; `last` stays where it is.
        """
        last = self.last
        entries, unreadable = await self.read_on()
        if unreadable is not None:
            self.last = last
            raise WireError(unreadable.why)
        return entries

    async def read_on(self) -> tuple[list[Entry[R]], Unreadable | None]:
        """The records after `last` up to the first that cannot be decoded, and that one, if there is one."""
        entries: list[Entry[R]] = []
        unreadable: Unreadable | None = None
        async for sequence, payload, time in read_stream(self._bus, self._stream, self._subject, self.last + 1):
            try:
                entries.append(Entry(sequence, self._decode(payload), time))
            except WireError as error:
                unreadable = Unreadable(f"{self._stream} sequence {sequence}: {error}", time)
                break
        if entries:
            self.last = entries[-1].sequence
        return entries, unreadable

    async def append(self, record: R) -> int:
        """Store `record` as the next one of this subject and return its sequence.

        Raises:
            FencedError: somebody else wrote since the last read; this writer must end and start again by reading.
            TransientError: the server did not answer within the bus deadline; whether it is stored is unknown.
        """
        payload = self._encode(record)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.last)}
        try:
            self.last = await self._bus.publish(self._subject, payload, headers)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise TransientError(f"append to {self._subject!r} was refused: {error}") from None
            self.last = await self._own(payload)
        return self.last

    async def _own(self, payload: bytes) -> int:
        """The sequence of the one record after `last`, if it is the one we sent and only its answer was lost.

        That the last record equals ours is not enough: a successor that has claimed plans the very same next record.
        """
        after = [
            (sequence, stored)
            async for sequence, stored, _ in read_stream(self._bus, self._stream, self._subject, self.last + 1)
        ]
        if len(after) == 1 and after[0][1] == payload:
            return after[0][0]
        end = after[-1][0] if after else 0
        raise FencedError(f"{self._subject!r} was written at sequence {end}, past {self.last} that we had read")


def ledger_log(bus: Bus, run_id: str) -> FencedLog[LedgerRecord]:
    return FencedLog(bus, subjects.LEDGER, subjects.ledger(run_id), encode_ledger, decode_ledger)


def trainer_log(bus: Bus, run_id: str) -> FencedLog[TrainerRecord]:
    return FencedLog(bus, subjects.TRAINER, subjects.trainer(run_id), encode_trainer, decode_trainer)


async def last_sequence(bus: Bus, stream: str, subject: str) -> int:
    """Sequence of the newest message of `subject` (wildcards allowed); 0 when there is none."""
    try:
        async for attempt in bus.retrying(subject):
            with attempt:
                return int((await bus.js.get_last_msg(stream, subject)).seq or 0)
    except NotFoundError:
        return 0
    raise AssertionError("unreachable: the retry loop returns or raises")


async def stored_up_to(bus: Bus, stream: str, subject: str, end: int) -> int:
    """How many messages of `subject` (wildcards allowed) are stored up to sequence `end`; the server counts them."""
    after = await _stored_from(bus, stream, subject, end + 1)
    return await _stored_from(bus, stream, subject, 1) - after


async def _stored_from(bus: Bus, stream: str, subject: str, start: int) -> int:
    consumer, name = await _consumer(bus, stream, subject, start)
    try:
        return (await bus.asking(subject, consumer.consumer_info)).num_pending or 0
    finally:
        await _forget(bus, stream, name, consumer)


async def read_stream(
    bus: Bus, stream: str, subject: str, start: int = 1
) -> AsyncIterator[tuple[int, bytes, datetime]]:
    """Yield (sequence, payload, time) of what `subject` holds now, from sequence `start` on, in order.

    What is purged while it is read is not waited for.
    """
    end = await last_sequence(bus, stream, subject)
    if end < start:
        return
    async with contextlib.aclosing(_heard(bus, stream, subject, start)) as messages:
        async for message in messages:
            if message is not None:
                yield message
                start = message[0] + 1
            elif await last_sequence(bus, stream, subject) < start:
                return
            if start > end:
                return


async def follow_stream(
    bus: Bus, stream: str, subject: str, start: int = 1
) -> AsyncGenerator[tuple[int, bytes, datetime], None]:
    """Yield what `subject` holds from sequence `start` on, then what arrives, for ever, in order and without gaps."""
    async with contextlib.aclosing(_heard(bus, stream, subject, start)) as messages:
        async for message in messages:
            if message is not None:
                yield message


async def _heard(
    bus: Bus, stream: str, subject: str, start: int
) -> AsyncGenerator[tuple[int, bytes, datetime] | None, None]:
    """What `follow_stream` yields, and None whenever nothing has come for QUIET_SECONDS.

    The consumer lives on the server; when the server forgets it (restart, inactivity), a new one starts where we were.
    So it does when a message is missing: nobody acknowledges, so what is lost on its way is not delivered again.
    """
    while True:
        consumer, name = await _consumer(bus, stream, subject, start)
        heard = 0
        try:
            while True:
                messages = await _fetched(consumer, heard)
                if not messages:
                    yield None
                for message in _next(messages, heard):
                    sequence = message.metadata.sequence
                    heard, start = sequence.consumer, sequence.stream + 1
                    yield sequence.stream, message.data, message.metadata.timestamp
        except (NotFoundError, nats.errors.Error, _MissedError):
            continue
        finally:
            await _forget(bus, stream, name, consumer)


def _next(messages: Sequence[Msg], heard: int) -> Iterator[Msg]:
    """Those of a consumer that follow the `heard` that have come. Raises: _MissedError: there is a gap before one."""
    for message in messages:
        number = message.metadata.sequence.consumer
        if number > heard + 1:
            raise _MissedError
        if number > heard:
            heard = number
            yield message


async def _consumer(bus: Bus, stream: str, subject: str, start: int) -> tuple[JetStreamContext.PullSubscription, str]:
    """A consumer of its own from sequence `start` on, and its name."""
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=start,
        filter_subject=subject,
        inactive_threshold=60.0,
        mem_storage=True,
    )
    async for attempt in bus.retrying(subject):
        with attempt:
            return await bus.js.pull_subscribe(subject, stream=stream, config=config), str(config.name)
    raise AssertionError("unreachable: the retry loop returns or raises")


async def _forget(bus: Bus, stream: str, name: str, consumer: JetStreamContext.PullSubscription) -> None:
    if bus.nc.is_connected:
        await consumer.unsubscribe()
        with contextlib.suppress(TimeoutError, nats.errors.Error):  # it runs out by itself
            await bus.js.delete_consumer(stream, name)


async def _fetched(consumer: JetStreamContext.PullSubscription, heard: int) -> list[Msg]:
    """What the consumer delivers within QUIET_SECONDS, of which `heard` messages have come; may be nothing.

    Raises:
        NotFoundError: the server has forgotten the consumer.
        _MissedError: it says that it has delivered more than has come.
    """
    try:
        return await consumer.fetch(FETCH, timeout=QUIET_SECONDS)
    except TimeoutError:  # the client raises its own kind, and the plain one
        delivered = (await consumer.consumer_info()).delivered
    if delivered is not None and delivered.consumer_seq > heard:
        raise _MissedError
    return []
