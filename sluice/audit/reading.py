"""What a run has stored, read from the server as it is now; everything else in this folder is arithmetic on it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message
from nats.js.errors import NotFoundError

from sluice.audit.findings import Fault, Finding
from sluice.transport.log import read_stream
from sluice.transport.nats import Bus
from sluice.wire import subjects
from sluice.wire.v1.ledger_pb2 import LedgerRecord, TrainerRecord
from sluice.wire.v1.rollouts_pb2 import Group

M = TypeVar("M", bound=Message)
NEWEST: dict[type[Message], int] = {LedgerRecord: 3, TrainerRecord: 1, Group: 2}
"""The newest format of each that this audit understands."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[M]):
    """A message with its stream sequence."""

    sequence: int
    message: M


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything but the rollouts, which are streamed past (`read_rollouts`): they are too big to hold."""

    run_id: str
    ledger: list[Stored[LedgerRecord]]
    trainer: list[Stored[TrainerRecord]]
    prompts: set[int]
    """Issue numbers whose prompt waits or is in a worker's hands."""
    groups: list[Stored[Group]]
    unreadable_groups: dict[int, int]
    """GROUPS messages that cannot be decoded: issue number by sequence."""
    unreadable: list[Finding] = field(default_factory=list)
    """Of the records."""

    @property
    def position(self) -> tuple[int, int]:
        """Ends of LEDGER and TRAINER: it moves while the run goes on."""
        return (self.ledger[-1].sequence if self.ledger else 0, self.trainer[-1].sequence if self.trainer else 0)


async def read_snapshot(bus: Bus, run_id: str) -> Snapshot:
    """PROMPTS before GROUPS: a worker stores the group before it acks the prompt, so one of the two is seen."""
    unreadable: list[Finding] = []
    ledger = await _read(bus, subjects.LEDGER, subjects.ledger(run_id), LedgerRecord, unreadable)
    trainer = await _read(bus, subjects.TRAINER, subjects.trainer(run_id), TrainerRecord, unreadable)
    prompts = await _waiting_prompts(bus, run_id)
    groups, unreadable_groups = await _read_groups(bus, run_id)
    return Snapshot(run_id, ledger, trainer, prompts, groups, unreadable_groups, unreadable)


async def read_rollouts(bus: Bus, run_id: str) -> AsyncIterator[tuple[int, bytes]]:
    """(sequence, stored part) of every message in ROLLOUTS, in order."""
    async for sequence, payload, _ in read_stream(bus, subjects.ROLLOUTS, subjects.rollouts(run_id)):
        yield sequence, payload


async def _read(bus: Bus, stream: str, subject: str, kind: type[M], unreadable: list[Finding]) -> list[Stored[M]]:
    messages: list[Stored[M]] = []
    async for sequence, payload, _ in read_stream(bus, stream, subject):
        try:
            messages.append(Stored(sequence, _parsed(kind, payload)))
        except ValueError as error:
            unreadable.append(Finding(Fault.UNREADABLE, f"{stream} sequence {sequence}: {error}"))
    return messages


async def _read_groups(bus: Bus, run_id: str) -> tuple[list[Stored[Group]], dict[int, int]]:
    messages: list[Stored[Group]] = []
    unreadable: dict[int, int] = {}
    async for sequence, payload, _ in read_stream(bus, subjects.GROUPS, subjects.groups(run_id)):
        try:
            messages.append(Stored(sequence, _parsed(Group, payload)))
        except ValueError:
            with contextlib.suppress(NotFoundError):  # purged meanwhile
                subject = (await bus.js.get_msg(subjects.GROUPS, sequence)).subject
                unreadable[sequence] = int(str(subject).rpartition(".")[2])
    return messages, unreadable


def _parsed(kind: type[M], payload: bytes) -> M:
    """Raises: ValueError: it is none, or of a format that is not known here."""
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    number, newest = getattr(message, "format", 0), NEWEST[kind]
    if not 1 <= number <= newest:
        raise ValueError(f"format {number}; this audit reads 1 to {newest}")
    return message


async def _waiting_prompts(bus: Bus, run_id: str) -> set[int]:
    try:
        info = await bus.js.stream_info(subjects.PROMPTS, subjects_filter=subjects.prompts(run_id))
    except NotFoundError:
        return set()
    return {int(subject.rpartition(".")[2]) for subject in info.state.subjects or {}}
