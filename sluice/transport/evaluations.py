"""EVALUATIONS, EVAL_PROMPTS and EVAL_GROUPS: evaluations inside a run, beside its training and apart from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from nats.aio.msg import Msg
from nats.js.errors import APIError

from sluice.errors import WireError
from sluice.telemetry import get_logger
from sluice.transport.log import WRONG_LAST_SEQUENCE, FencedLog, follow_stream, read_stream
from sluice.transport.nats import RETRYABLE, Bus
from sluice.transport.queues import Delivery, join_work, leave_work
from sluice.types import EvaluationGroup, EvaluationPrompt, EvaluationRecord
from sluice.wire import subjects
from sluice.wire.evaluation import (
    decode_evaluation,
    decode_evaluation_group,
    decode_evaluation_prompt,
    encode_evaluation,
    encode_evaluation_group,
    encode_evaluation_prompt,
)


def evaluations_log(bus: Bus, run_id: str) -> FencedLog[EvaluationRecord]:
    """What became of each evaluation of a run; the coordinator that holds the run is the only one to append."""
    return FencedLog(bus, subjects.EVALUATIONS, subjects.evaluations(run_id), encode_evaluation, decode_evaluation)


async def follow_evaluations(bus: Bus, run_id: str, start: int = 1) -> AsyncIterator[EvaluationRecord]:
    """The records of a run from sequence `start` on, then what arrives, for ever."""
    async for _, payload, _ in follow_stream(bus, subjects.EVALUATIONS, subjects.evaluations(run_id), start):
        yield decode_evaluation(payload)


class EvaluationDelivery(Delivery):
    """An evaluation prompt in a worker's hands."""

    def __init__(self, message: Msg) -> None:
        self._message = message
        self.asked: EvaluationPrompt = decode_evaluation_prompt(message.data)
        self.prompt = self.asked.prompt


class EvaluationQueue:
    """A reserved worker's end of EVAL_PROMPTS: one shared durable consumer a run."""

    def __init__(self, subscription: Any, count_unreadable: Callable[[], None]) -> None:
        self._subscription, self._count_unreadable = subscription, count_unreadable
        self._log = get_logger("nats")

    @classmethod
    async def join(cls, bus: Bus, run_id: str, count_unreadable: Callable[[], None] = lambda: None) -> EvaluationQueue:
        subject = subjects.evaluation_prompts(run_id)
        return cls(await join_work(bus, subjects.EVAL_PROMPTS, subject, evaluators(run_id)), count_unreadable)

    async def pull(self, most: int, wait_seconds: float) -> list[EvaluationDelivery]:
        """Up to `most` prompts; an empty list when none came within `wait_seconds` or the server is away."""
        try:
            messages = await self._subscription.fetch(most, timeout=wait_seconds)
        except RETRYABLE:
            return []
        return [delivery for m in messages if (delivery := await self._readable(m)) is not None]

    async def _readable(self, message: Msg) -> EvaluationDelivery | None:
        """A prompt that nobody can read is taken out of the queue and named; its evaluation ends incomplete."""
        try:
            return EvaluationDelivery(message)
        except WireError as error:
            self._count_unreadable()
            self._log.error("prompt_unreadable", subject=message.subject, error=str(error))
            await message.term()
            return None


def evaluators(run_id: str) -> str:
    """The consumer that all reserved workers of a run share."""
    return f"evaluators-{run_id}"


async def publish_evaluation_prompt(bus: Bus, asked: EvaluationPrompt) -> None:
    """Offer a prompt to the reserved workers. Publishing it again is harmless: the first stored group wins."""
    prompt, number = asked.prompt, asked.version.number
    headers = {"Nats-Msg-Id": f"{prompt.run_id}/evaluation-{number}/{prompt.n}"}
    subject = subjects.evaluation_prompt(prompt.run_id, number, prompt.n)
    await bus.publish(subject, encode_evaluation_prompt(asked), headers)


async def waiting_evaluation_prompts(bus: Bus, run_id: str, number: int) -> set[int]:
    """The n of the prompts of an evaluation that are in EVAL_PROMPTS now, delivered or not."""
    subject = subjects.evaluation_prompts(run_id, number)
    info = await bus.asking(subject, lambda: bus.js.stream_info(subjects.EVAL_PROMPTS, subjects_filter=subject))
    return {int(found.rsplit(".", 1)[1]) for found in info.state.subjects or {}}


async def store_evaluation_group(bus: Bus, group: EvaluationGroup) -> bool:
    """Commit what became of a prompt: False if another attempt at it was stored first."""
    subject = subjects.evaluation_group(group.run_id, group.version.number, group.n)
    try:
        await bus.publish(subject, encode_evaluation_group(group), {"Nats-Expected-Last-Subject-Sequence": "0"})
    except APIError as error:
        if error.err_code != WRONG_LAST_SEQUENCE:
            raise
        return False
    return True


async def read_evaluation_groups(bus: Bus, run_id: str, number: int) -> list[EvaluationGroup]:
    """What an evaluation has stored by now; the unreadable are left out.

    A group that cannot be read is missing, as one that was never stored: its evaluation ends incomplete.
    """
    found = []
    subject = subjects.evaluation_groups(run_id, number)
    async for sequence, payload, _ in read_stream(bus, subjects.EVAL_GROUPS, subject):
        try:
            found.append(decode_evaluation_group(payload))
        except WireError as error:
            get_logger("nats").error("evaluation_group_unreadable", sequence=sequence, error=str(error))
    return found


async def stored_evaluation_groups(bus: Bus, run_id: str, number: int) -> set[int]:
    """The n of the prompts of an evaluation whose group is stored."""
    subject = subjects.evaluation_groups(run_id, number)
    info = await bus.asking(subject, lambda: bus.js.stream_info(subjects.EVAL_GROUPS, subjects_filter=subject))
    return {int(found.rsplit(".", 1)[1]) for found in info.state.subjects or {}}


async def remove_evaluation_consumer(bus: Bus, run_id: str) -> None:
    """Forget the consumer that the reserved workers of a run shared; nothing happens when there is none."""
    await leave_work(bus, subjects.EVAL_PROMPTS, evaluators(run_id))


async def clear_evaluation(bus: Bus, run_id: str, number: int) -> None:
    """Take back the prompts and groups of an evaluation that is settled."""
    for stream, subject in (
        (subjects.EVAL_PROMPTS, subjects.evaluation_prompts(run_id, number)),
        (subjects.EVAL_GROUPS, subjects.evaluation_groups(run_id, number)),
    ):
        await bus.purge(stream, subject)
