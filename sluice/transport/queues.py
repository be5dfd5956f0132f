"""PROMPTS, ROLLOUTS, GROUPS and EVENTS: how a prompt reaches a worker, and what it becomes reaches the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from sluice.errors import WireError
from sluice.packed import WIDTH
from sluice.telemetry import get_logger
from sluice.transport.bursts import Message
from sluice.transport.log import WRONG_LAST_SEQUENCE, read_stream
from sluice.transport.nats import RETRYABLE, Bus
from sluice.types import Group, Prompt, Rollout
from sluice.wire import subjects
from sluice.wire.codec import (
    decode_group,
    decode_prompt,
    decode_rollout,
    encode_group,
    encode_prompt,
    encode_rollout,
)
from sluice.wire.payload import Slot, content_hash, has_content_hash, pack, unpack

T = TypeVar("T")
ACK_WAIT_SECONDS = 10.0
"""A prompt whose holder has not said "in progress" for this long is delivered to somebody else."""
PARALLEL_FETCHES = 64
TOGETHER = 32
"""Rollouts that are decoded in one go, beside the fetching of the others."""
ASIDE_BYTES = 8 << 20
"""From here on encoding and decoding would hold up the event loop, for 4 ms; less is not worth another thread."""


class Named(Protocol):
    """A rollout as its group names it: a RolloutSummary, or what `store_rollouts` returned."""

    @property
    def sequences(self) -> Sequence[int]: ...
    @property
    def content_hash(self) -> bytes: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a rollout was stored, and the hash of its bytes: what its group's metadata names."""

    sequences: tuple[int, ...]
    content_hash: bytes
    offset: int
    nbytes: int


class Delivery:
    """A prompt in a worker's hands, until it is acked, handed back, or silent for ACK_WAIT_SECONDS."""

    def __init__(self, message: Msg) -> None:
        self._message = message
        self.prompt: Prompt = decode_prompt(message.data)

    @property
    def redelivered(self) -> bool:
        """Somebody was given it before, and fell silent or handed it back."""
        return bool(self._message.metadata.num_delivered > 1)

    async def ack(self) -> None:
        """Settle it: the group is stored. Should the server not hear of it, another attempt is made, and loses."""
        await self._message.ack()

    async def in_progress(self) -> None:
        """Say that tokens advance; restarts the silence clock."""
        await self._message.in_progress()

    async def hand_back(self, delay_seconds: float = 0.0) -> None:
        """Give it to somebody else, after a delay."""
        await self._message.nak(delay=delay_seconds or None)


class PromptQueue:
    """The worker's end of PROMPTS: one shared durable consumer a run."""

    def __init__(self, subscription: Any, count_unreadable: Callable[[], None]) -> None:
        self._subscription, self._count_unreadable = subscription, count_unreadable
        self._log = get_logger("nats")

    @classmethod
    async def join(cls, bus: Bus, run_id: str, count_unreadable: Callable[[], None] = lambda: None) -> PromptQueue:
        subscription = await join_work(bus, subjects.PROMPTS, subjects.prompts(run_id), _durable(run_id))
        return cls(subscription, count_unreadable)

    async def pull(self, most: int, wait_seconds: float = 1.0) -> list[Delivery]:
        """Up to `most` prompts; an empty list when none came within `wait_seconds` or the server is away."""
        try:
            messages = await self._subscription.fetch(most, timeout=wait_seconds)
        except RETRYABLE:
            return []
        return [delivery for m in messages if (delivery := await self._readable(m)) is not None]

    async def _readable(self, message: Msg) -> Delivery | None:
        """A prompt that nobody can read is taken out of the queue and named; its group is a straggler from then on."""
        try:
            return Delivery(message)
        except WireError as error:
            self._count_unreadable()
            self._log.error("prompt_unreadable", subject=message.subject, error=str(error))
            await message.term()
            return None


async def join_work(bus: Bus, stream: str, subject: str, durable: str) -> Any:
    """This worker's end of a work queue: a consumer under a name that its workers share, made by the first of them."""
    config = ConsumerConfig(
        durable_name=durable,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_SECONDS,
        max_deliver=-1,
        max_ack_pending=1_000_000,
        filter_subject=subject,
    )
    async for attempt in bus.retrying(subject):
        with attempt:
            return await bus.js.pull_subscribe(subject, durable=durable, stream=stream, config=config)
    raise AssertionError("unreachable: the retry loop returns or raises")


async def remove_prompt_consumer(bus: Bus, run_id: str) -> None:
    """Forget the consumer that the workers of a run shared; nothing happens when there is none."""
    await leave_work(bus, subjects.PROMPTS, _durable(run_id))


async def leave_work(bus: Bus, stream: str, durable: str) -> None:
    """Forget a consumer of a work queue, for all its workers; nothing happens when there is none."""
    try:
        await bus.js.delete_consumer(stream, durable)
    except NotFoundError:
        return


def _durable(run_id: str) -> str:
    """The consumer that all workers of a run share."""
    return f"workers-{run_id}"


async def publish_prompt(bus: Bus, prompt: Prompt) -> None:
    """Offer an issued prompt to the workers. Publishing it again is harmless: the first stored group wins."""
    await bus.publish_all([_offer(prompt)])


async def offer_prompts(bus: Bus, prompts: Sequence[Prompt]) -> set[int]:
    """Offer several prompts of a run, no more than a burst, once; the issue numbers of those that PROMPTS has taken."""
    taken = await bus.publish_once([_offer(prompt) for prompt in prompts])
    return {prompts[at].n for at in taken}


def _offer(prompt: Prompt) -> Message:
    headers = {"Nats-Msg-Id": f"{prompt.run_id}/{prompt.n}/{prompt.min_version}"}
    return Message(subjects.prompt(prompt.run_id, prompt.n), encode_prompt(prompt), headers)


async def store_rollouts(bus: Bus, rollouts: Sequence[Rollout]) -> list[Stored]:
    """Store the rollouts of an attempt in as few messages as they fit; returns what their group names, in order."""

    def encode() -> tuple[list[bytes], list[Slot], list[bytes]]:
        payloads = [encode_rollout(rollout) for rollout in rollouts]
        return *pack(payloads), [content_hash(payload) for payload in payloads]

    numbers = sum(len(r.token_ids) + len(r.logprobs) + len(r.prompt_token_ids) for r in rollouts)
    bodies, slots, hashes = await _aside(encode, WIDTH * numbers)
    sequences = await bus.publish_all(_messages(rollouts[0], bodies) if bodies else [])
    return [
        Stored(tuple(sequences[at] for at in slot.messages), digest, slot.offset, slot.nbytes)
        for slot, digest in zip(slots, hashes, strict=True)
    ]


def _messages(first: Rollout, bodies: Sequence[bytes]) -> list[Message]:
    """The messages of the attempt whose first rollout this is."""
    subject, name = subjects.rollouts(first.run_id), f"{first.run_id}/{first.n}/{first.attempt}/{first.i}"
    return [Message(subject, body, {"Nats-Msg-Id": f"{name}/{at}"}) for at, body in enumerate(bodies)]


async def _aside(work: Callable[[], T], nbytes: int) -> T:
    """The result of `work` on `nbytes`; in another thread if they are many."""
    return await asyncio.to_thread(work) if nbytes >= ASIDE_BYTES else work()


async def store_group(bus: Bus, group: Group) -> bool:
    """Commit an attempt: True if this is the group now, False if another attempt at it was stored first."""
    payload = encode_group(group)
    subject = subjects.group(group.run_id, group.n)
    try:
        await bus.publish(subject, payload, {"Nats-Expected-Last-Subject-Sequence": "0"})
    except APIError as error:
        if error.err_code != WRONG_LAST_SEQUENCE:
            raise
        return bool((await bus.js.get_last_msg(subjects.GROUPS, subject)).data == payload)
    return True


async def fetch_rollouts(bus: Bus, wanted: Sequence[Named]) -> list[Rollout]:
    """Rollouts by the sequences and content hashes that their groups name, in the order asked for.

    Raises:
        WireError: a message is gone, or the bytes are not those that the group was scored on.
    """
    room = asyncio.Semaphore(PARALLEL_FETCHES // TOGETHER)

    async def some(part: Sequence[Named]) -> list[Rollout]:
        async with room:
            found = await bus.fetch_all(subjects.ROLLOUTS, sorted({s for named in part for s in named.sequences}))
        return await _aside(lambda: [_verified(found, named) for named in part], sum(map(len, found.values())))

    parts = await asyncio.gather(*(some(wanted[at : at + TOGETHER]) for at in range(0, len(wanted), TOGETHER)))
    return [rollout for part in parts for rollout in part]


def _verified(messages: Mapping[int, bytes], named: Named) -> Rollout:
    if gone := [sequence for sequence in named.sequences if sequence not in messages]:
        raise WireError(f"ROLLOUTS has no message at sequence {gone[0]}: purged, or never stored")
    payload = unpack([messages[sequence] for sequence in named.sequences], named.offset, named.nbytes)
    if not has_content_hash(payload, named.content_hash):
        found, where = content_hash(payload).hex(), f"{list(named.sequences)}, byte {named.offset},"
        raise WireError(f"rollout at {where} has content hash {found}, its group names {named.content_hash.hex()}")
    return decode_rollout(payload)


async def read_groups(bus: Bus, run_id: str, start: int) -> list[tuple[int, Group]]:
    """(sequence, group) of what a run's GROUPS hold now, from sequence `start` on. Raises: WireError: it is none."""
    stored = read_stream(bus, subjects.GROUPS, subjects.groups(run_id), start)
    return [(sequence, decode_group(payload)) async for sequence, payload, _ in stored]


async def pending_prompts(bus: Bus, run_id: str) -> set[int]:
    """Issue numbers whose prompt is in PROMPTS now, delivered or not."""
    info = await bus.js.stream_info(subjects.PROMPTS, subjects_filter=subjects.prompts(run_id))
    return {int(subject.rsplit(".", 1)[1]) for subject in info.state.subjects or {}}


async def queue_depth(bus: Bus, run_id: str) -> tuple[int, int]:
    """Prompts that no worker has pulled, and prompts in workers' hands; both 0 before a worker has joined."""
    try:
        info = await bus.js.consumer_info(subjects.PROMPTS, _durable(run_id))
    except NotFoundError:
        return 0, 0
    return info.num_pending or 0, info.num_ack_pending or 0


async def delete_prompts(bus: Bus, run_id: str) -> None:
    """Take back every prompt of a run that nobody finished; its groups must be settled first."""
    await bus.purge(subjects.PROMPTS, subjects.prompts(run_id))


async def publish_event(bus: Bus, run_id: str, kind: str, fields: dict[str, Any]) -> None:
    """Tell people. Events are never state: losing one loses nothing."""
    payload = json.dumps({"kind": kind, "run_id": run_id, **fields}, separators=(",", ":")).encode()
    try:
        await bus.js.publish(subjects.event(run_id, kind), payload)
    except (APIError, nats.errors.Error):
        return
