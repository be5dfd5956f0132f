"""A worker's part in an evaluation inside a run: reserved, it samples from one policy version and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats
from nats.js.errors import APIError

from services.rollout import metrics
from services.rollout.attempts import Attempts
from services.rollout.completion import Completion, ForeignWeightsError
from services.rollout.group import RETRY_SECONDS, Bench, attempted, keep_storing, quietly
from services.rollout.run import NATS_FAULTS, Run
from services.rollout.scoring import verdicts_of
from sluice.cancellation import end_tasks
from sluice.errors import TransientError, WaitTimeoutError
from sluice.transport.engine import EngineDownError
from sluice.transport.evaluations import (
    EvaluationDelivery,
    EvaluationQueue,
    evaluations_log,
    follow_evaluations,
    store_evaluation_group,
)
from sluice.transport.lease import Lease
from sluice.types import (
    EvaluatedResponse,
    EvaluationBegun,
    EvaluationGroup,
    EvaluationPrompt,
    EvaluationRecord,
    PolicyVersion,
    ScoreItem,
)
from sluice.wire import subjects

PULL_SECONDS = 0.5
TRY_SECONDS = 1.0
"""Between two tries for a seat."""
REST_SECONDS = 30.0
"""A worker that could not serve the version leaves its seat to others for so long."""


@dataclass(frozen=True, slots=True)
class Seat:
    """This worker is one of the run's `evaluation.max_servers` that evaluate `version`."""

    version: PolicyVersion
    lease: Lease


class Evaluations:
    """What the run evaluates now, and whether this worker is to take part.

    Args:
        tell: called when this worker is reserved or let go, so that others learn of it.
    """

    def __init__(self, run: Run, tell: Callable[[], None]) -> None:
        self._run, self._tell = run, tell
        self._try_at = 0.0
        self._ended = asyncio.Event()
        self.going_on: PolicyVersion | None = None
        self.reserved: PolicyVersion | None = None
        """What this worker evaluates, from the moment it has its seat."""

    async def follow(self) -> None:
        """Take note of each evaluation that begins or ends, for ever."""
        log = evaluations_log(self._run.bus, self._run.id)
        for entry in await log.read():
            self._note(entry.record)
        async for record in follow_evaluations(self._run.bus, self._run.id, log.last + 1):
            self._note(record)

    def _note(self, record: EvaluationRecord) -> None:
        if isinstance(record, EvaluationBegun):
            self.going_on = record.version
            self._ended.clear()
        elif record.version == self.going_on:
            self.going_on = None
            self._ended.set()

    def reserve(self, version: PolicyVersion | None) -> None:
        """This worker evaluates `version` from now on, or trains again."""
        self.reserved = version
        metrics.EVALUATING.labels(self._run.id).set(version is not None)
        self._tell()

    async def seat(self) -> Seat | None:
        """A free seat in the evaluation that goes on; None if there is none. Leases decide who gets which."""
        version, now = self.going_on, time.monotonic()
        if version is None or now < self._try_at:
            return None
        self._try_at = now + TRY_SECONDS
        for number in range(self._run.spec.evaluation.max_servers):
            key = f"evaluation.{self._run.id}.{number}"
            try:
                lease = await Lease.acquire(self._run.bus, key, self._run.worker, subjects.WORKER_TTL_SECONDS)
            except (APIError, nats.errors.Error):
                return None
            if lease is not None:
                return Seat(version, lease)
        return None

    async def serve(
        self, seat: Seat, bench: Bench, slots: int, leave: asyncio.Event, drained: Callable[[], Awaitable[None]]
    ) -> None:
        """Sample what the evaluation asks for, until it ends, the seat is lost or `leave` is set.

        consumes:     evaluation prompts (EVAL_PROMPTS)
        produces:     evaluation groups (EVAL_GROUPS); then the prompt is acked
        waits for:    training groups in flight (`drained`), the pinned version ("policy_version"), prompts, the engine,
                      verdicts ("reward")
        unblocked by: their own deadlines, weight sync, the coordinator, the engine, the reward service
        on failure:   prompts in hand are given back to whoever has the seat next; the evaluation's own deadline ends it
        """

        async def work() -> None:
            await drained()  # their prompts may forbid weights as old as these
            async with bench.sync.pinned(seat.version):
                await self._sample(seat.version, bench, slots)

        events = (self._ended, seat.lease.lost, leave)
        tasks = [asyncio.create_task(work()), *(asyncio.create_task(event.wait()) for event in events)]
        if self.going_on != seat.version:
            self._ended.set()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            faults = await end_tasks(tasks)
        if faults:
            raise faults[0]

    async def _sample(self, version: PolicyVersion, bench: Bench, slots: int) -> None:
        """Keep every slot filled, for ever; returns when the version is not to be had."""
        try:
            await bench.sync.serving(version)
        except WaitTimeoutError as error:
            bench.run.log.warning("evaluation_left_to_others", version=str(version), error=str(error))
            self._try_at = time.monotonic() + REST_SECONDS
            return
        queue = await EvaluationQueue.join(bench.run.bus, bench.run.id)
        attempts = await Attempts.open(bench.run.bus, f"{bench.run.id}.evaluation-{version.number}")
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                tasks -= _done(tasks)
                if len(tasks) >= slots:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for delivery in await queue.pull(slots - len(tasks), PULL_SECONDS):
                    tasks.add(asyncio.create_task(respond(delivery, version, bench, attempts)))
        finally:
            await end_tasks(tasks)


def _done(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that have ended. Raises: what one of them did: like a group's, such a fault ends the process."""
    done = {task for task in tasks if task.done()}
    for task in done:
        task.result()
    return done


async def respond(delivery: EvaluationDelivery, version: PolicyVersion, bench: Bench, attempts: Attempts) -> None:
    """Make one attempt at an evaluation prompt, and settle its delivery, as `roll_out` does for training."""
    asked = delivery.asked
    if asked.version != version:
        await quietly(delivery.ack(), bench)  # of an evaluation that is settled
        return
    status = "handed_back"
    try:
        with bench.in_hand.holding(delivery):
            status = await attempted(
                asked.prompt.n,
                bench,
                attempts,
                make=lambda _, alone: _make(asked, alone, bench),
                give_up=lambda _, error: _failed(asked, error, bench),
                commit=lambda group: _commit(group, bench),
            )
    except asyncio.CancelledError:
        await quietly(delivery.hand_back(), bench)
        raise
    except (TransientError, WaitTimeoutError, *NATS_FAULTS) as error:
        bench.run.log.warning("prompt_handed_back", error=str(error), evaluation=str(asked.version))
        await quietly(delivery.hand_back(RETRY_SECONDS), bench)
    else:
        await quietly(delivery.ack(), bench)
    finally:
        metrics.EVALUATION_GROUPS.labels(bench.run.id, status).inc()


async def _make(asked: EvaluationPrompt, alone: bool, bench: Bench) -> EvaluationGroup:
    started = time.monotonic()
    completions = await _generate(asked, alone, bench)
    generated = time.monotonic()
    prompt = asked.prompt
    texts = [bench.text(completion.token_ids) for completion in completions]
    items = [
        ScoreItem(
            id=f"{prompt.run_id}/evaluation-{asked.version.number}/{prompt.n}/{i}",
            data_source=prompt.data_source,
            prompt=prompt.text,
            response=text,
            ground_truth=prompt.ground_truth,
            extra_info=prompt.extra_info,
            response_length=len(completions[i].token_ids),
        )
        for i, text in enumerate(texts)
    ]
    verdicts = await verdicts_of(prompt.run_id, items, bench.scorer)
    return EvaluationGroup(
        run_id=prompt.run_id,
        version=asked.version,
        n=prompt.n,
        responses=tuple(
            EvaluatedResponse(text, len(completion.token_ids), completion.finish_reason, verdict)
            for text, completion, verdict in zip(texts, completions, verdicts, strict=True)
        ),
        worker=bench.run.worker,
        engine=bench.engine.url,
        generate_seconds=generated - started,
        reward_seconds=time.monotonic() - generated,
    )


async def _generate(asked: EvaluationPrompt, alone: bool, bench: Bench) -> list[Completion]:
    """Responses whose every token comes from the version that is evaluated."""
    await bench.sync.serving(asked.version)
    try:
        async with bench.gate.exclusive() if alone else bench.gate.shared():
            seconds = bench.run.spec.deadlines.generate_seconds
            completions = await bench.engine.generate(asked.prompt, bench.limits, seconds, asked.seeds)
        for completion in completions:
            if {completion.oldest_version, completion.newest_version} != {asked.version}:
                raise ForeignWeightsError(
                    f"engine sampled from {completion.oldest_version} to {completion.newest_version}; "
                    f"the evaluation is of {asked.version}"
                )
    except (EngineDownError, ForeignWeightsError):
        await bench.sync.engine_lost()
        raise
    metrics.EVALUATION_TOKENS.labels(bench.run.id).inc(sum(len(completion.token_ids) for completion in completions))
    return completions


def _failed(asked: EvaluationPrompt, error: str, bench: Bench) -> EvaluationGroup:
    return EvaluationGroup(
        run_id=asked.prompt.run_id,
        version=asked.version,
        n=asked.prompt.n,
        responses=(),
        worker=bench.run.worker,
        engine=bench.engine.url,
        generate_seconds=0.0,
        reward_seconds=0.0,
        error=error,
    )


async def _commit(group: EvaluationGroup, bench: Bench) -> str:
    won = await keep_storing(lambda: store_evaluation_group(bench.run.bus, group), bench)
    return ("failed" if group.error else "stored") if won else "lost"
