"""The streams of one run, kept in memory: what was stored, in which order, and who may append.

Appends are fenced and a group is committed once, as the server does it; every record goes through the wire's own codec,
so that what a record does not carry is lost here too. The server and the client have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from sluice.errors import FencedError
from sluice.transport.groups import StoredGroup, UnreadableGroup
from sluice.transport.log import Entry
from sluice.types import Floors, LedgerRecord, PolicyVersion, Prompt, TrainerRecord, Version
from sluice.wire.codec import decode_group, encode_group
from sluice.wire.records import decode_ledger, decode_trainer, encode_ledger, encode_trainer
from tests.coordinator.bounds.truth import Truth

R = TypeVar("R")


class DiedError(Exception):
    """A coordinator's process has ended between two effects."""


@dataclass(eq=False)
class Message:
    """One prompt in PROMPTS; published again it is a second one, as if no message id were remembered."""

    n: int
    min_version: int


@dataclass
class Streams:
    """What the server holds. `truth` sees every record as it is stored, and objects."""

    truth: Truth
    ledger: list[Entry[LedgerRecord]] = field(default_factory=list)
    trainer: list[Entry[TrainerRecord]] = field(default_factory=list)
    groups: list[tuple[int, StoredGroup]] = field(default_factory=list)
    groups_end: int = 0
    rollouts_end: int = 0
    purged_rollouts: int = 0
    prompts: list[Message] = field(default_factory=list)
    in_the_air: list[Message] = field(default_factory=list)
    """Prompts whose sender died; they may land at any time."""

    def add_ledger(self, record: LedgerRecord, last: int) -> int:
        """Raises: FencedError: `last` is not the last record."""
        stored = decode_ledger(encode_ledger(record))
        sequence = _append(self.ledger, stored, last)
        self.truth.see(stored)
        return sequence

    def add_trainer(self, record: TrainerRecord) -> None:
        """The trainer's records; a second trainer's fence has tests of its own."""
        last = self.trainer[-1].sequence if self.trainer else 0
        _append(self.trainer, decode_trainer(encode_trainer(record)), last)
        if isinstance(record, Version):
            self.truth.publish(record.version.number)

    def add_group(self, group: StoredGroup) -> bool:
        """False if a group of this number is stored already, as far as a purge has left its fence."""
        if any(stored.n == group.n for _, stored in self.groups):
            return False
        self.groups_end += 1
        if isinstance(group, UnreadableGroup):
            self.groups.append((self.groups_end, group))
            return True
        stored = decode_group(encode_group(group))
        self.groups.append((self.groups_end, stored))
        self.truth.see_group(self.groups_end, stored)
        return True

    def add_rollouts(self, count: int) -> range:
        """Their sequences."""
        self.rollouts_end += count
        return range(self.rollouts_end - count + 1, self.rollouts_end + 1)

    def purge(self, floors: Floors) -> None:
        self.groups = [(sequence, group) for sequence, group in self.groups if sequence > floors.groups]
        self.purged_rollouts = max(self.purged_rollouts, floors.rollouts)

    def settle(self, message: Message) -> None:
        """An ack; a message that was deleted meanwhile is gone already."""
        self.prompts = [other for other in self.prompts if other is not message]

    def published(self) -> list[PolicyVersion]:
        return [entry.record.version for entry in self.trainer if isinstance(entry.record, Version)]

    def as_of(self, ledger: int, trainer: int, groups: int) -> Streams:
        """What somebody has seen who has read up to these sequences."""
        return replace(
            self,
            truth=Truth(self.truth.bounds, strict=False),
            ledger=[entry for entry in self.ledger if entry.sequence <= ledger],
            trainer=[entry for entry in self.trainer if entry.sequence <= trainer],
            groups=[(sequence, group) for sequence, group in self.groups if sequence <= groups],
            prompts=list(self.prompts),
        )


def _append(entries: list[Entry[R]], record: R, last: int) -> int:
    end = entries[-1].sequence if entries else 0
    if end != last:
        raise FencedError(f"the subject ends at {end}, not at {last}")
    entries.append(Entry(end + 1, record, datetime.now(UTC)))
    return end + 1


@dataclass
class Connection:
    """One coordinator's way to the streams: it can be cut before or after any effect."""

    streams: Streams
    effects_left: int | None = None
    """Until its process dies; None: it lives."""
    last_one_lands: bool = False
    """Whether the effect in which it dies reaches the server; a prompt that does not may still land later."""

    def effect(self, store: Callable[[], R]) -> R:
        """Raises: DiedError: the process ended, before or after what `store` does."""
        if self.effects_left is None:
            return store()
        self.effects_left -= 1
        if self.effects_left >= 0:
            return store()
        if self.effects_left == -1 and self.last_one_lands:
            store()
        raise DiedError


class MemoryLog(Generic[R]):
    """What a coordinator sees of FencedLog."""

    def __init__(self, connection: Connection, entries: list[Entry[R]], store: Callable[[R, int], int]) -> None:
        self._connection, self._entries, self._store = connection, entries, store
        self.last = 0

    async def read(self) -> list[Entry[R]]:
        new = [entry for entry in self._entries if entry.sequence > self.last]
        self.last = new[-1].sequence if new else self.last
        return new

    async def append(self, record: R) -> int:
        self.last = self._connection.effect(lambda: self._store(record, self.last))
        return self.last


def ledger_log(connection: Connection, run_id: str) -> MemoryLog[LedgerRecord]:
    return MemoryLog(connection, connection.streams.ledger, connection.streams.add_ledger)


def trainer_log(connection: Connection, run_id: str) -> MemoryLog[TrainerRecord]:
    def refuse(record: TrainerRecord, last: int) -> int:
        raise AssertionError(f"a coordinator writes {record} to TRAINER")

    return MemoryLog(connection, connection.streams.trainer, refuse)


class Offering:
    """What a coordinator sees of its Offering; it gets on when the schedule says so."""

    refused = ""

    def __init__(self, connection: Connection, prompt: Callable[[int], Prompt | None]) -> None:
        self._connection, self._prompt = connection, prompt
        self._waiting: list[int] = []

    @property
    def unoffered(self) -> int | None:
        return next(iter(self._waiting), None)

    def add(self, numbers: Iterable[int]) -> None:
        self._waiting += [n for n in numbers if n not in self._waiting]

    def try_again(self) -> None:
        return

    async def clear(self) -> None:
        self._waiting.clear()

    def wait(self) -> None:
        return

    def offer(self, most: int) -> bool:
        """Put the first of them into PROMPTS; whether these were all."""
        for n in self._waiting[:most]:
            if (prompt := self._prompt(n)) is not None:
                _publish_prompt(self._connection, prompt)
            self._waiting.remove(n)
        return not self._waiting


def _publish_prompt(connection: Connection, prompt: Prompt) -> None:
    message, streams = Message(prompt.n, prompt.min_version), connection.streams
    try:
        connection.effect(lambda: streams.prompts.append(message))
    except DiedError:
        if message not in streams.prompts:
            streams.in_the_air.append(message)
        raise


async def pending_prompts(connection: Connection, run_id: str) -> set[int]:
    return {message.n for message in connection.streams.prompts}


async def delete_prompts(connection: Connection, run_id: str) -> None:
    connection.effect(connection.streams.prompts.clear)


async def stored_groups(connection: Connection, run_id: str, start: int) -> list[tuple[int, StoredGroup]]:
    return [(sequence, group) for sequence, group in connection.streams.groups if sequence >= start]


async def nothing_to_tell(*_: object) -> None:
    """Events and announcements are for people and for those who look for work."""
