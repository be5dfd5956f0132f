"""The coordinator's main loop: one run, from its first prompt to its last batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol

from services.coordinator.control import Request, answer
from services.coordinator.run import Run
from services.coordinator.staff import Beat
from sluice.errors import ConfigError
from sluice.transport.groups import StoredGroup
from sluice.transport.log import Entry
from sluice.types import Batch, DropReason, RunState, TrainerRecord

UNFINISHED = (RunState.QUEUED, RunState.RUNNING, RunState.PAUSED)
DATA_IS_BACK = "the data set is back"
HEARD_TOGETHER = 64
"""Groups that are taken before the next decision, if so many are there: one record issues what follows them all."""
UNSCORED_LIMIT = 32
"""Groups in a row without verdicts after which the run pauses and says why."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A group was stored at this GROUPS sequence."""

    sequence: int
    group: StoredGroup


@dataclass(frozen=True, slots=True)
class Tick:
    """A second went by, and this is how things stand around the run."""

    beat: Beat


@dataclass(frozen=True, slots=True)
class OfferingRests:
    """All that was issued is in PROMPTS now, or the server takes no message as large as one of the prompts."""


News = Stored | Entry[TrainerRecord] | Request | Tick | OfferingRests


class Inbox(Protocol):
    """Everything the loop hears, in one queue."""

    async def next(self) -> News:
        """The next piece of news; the longest wait is a tick. Raises: whatever broke a source for good."""
        ...

    def groups_at_hand(self) -> Iterator[Stored]:
        """The groups that come next and are there already, as many as are asked for."""
        ...


async def coordinate(run: Run, inbox: Inbox) -> None:
    """Issue prompts, filter what comes back and emit batches, until the run has ended.

    consumes:     groups (GROUPS), versions and checkpoints (TRAINER), requests to pause, resume and stop
    produces:     prompts (PROMPTS), and every decision as a record (LEDGER), stored before it takes effect
    waits for:    a group, a version, a checkpoint or a person, whichever comes first
    unblocked by: rollout workers (a group frees a slot or fills the batch), the trainer (a version frees capacity)
    on failure:   a refused append ends this holder (FencedError); whoever claims next rebuilds the same queue
    """
    await advance(run)
    while not run.history.state.terminal:
        await hear(run, await inbox.next())
        for group in islice(inbox.groups_at_hand(), HEARD_TOGETHER):
            await hear(run, group)
        await advance(run)


async def hear(run: Run, news: News) -> None:
    """Take one piece of news."""
    match news:
        case Stored(sequence, group):
            run.take_group(sequence, group)
        case Entry():
            run.take_trainer_record(news)
        case Request():
            await answer(run, news)
        case Tick(beat):
            await run.tick(beat)
        case OfferingRests():
            pass  # what follows from it is decided with all else


async def advance(run: Run) -> None:
    """Do everything that can be done now."""
    if not run.history.state.terminal and (reason := reason_to_fail(run)):
        await fail(run, reason)
    if run.history.state in UNFINISHED and (reason := deadline_passed(run)):
        await end(run, reason, RunState.FAILED)
    await heed_data(run)
    match run.history.state:
        case RunState.QUEUED:
            await start_when_staffed(run)
        case RunState.STOPPING:
            await end_when_checkpointed(run)
    while run.history.state is RunState.RUNNING and await take_step(run):
        pass


async def heed_data(run: Run) -> None:
    """A run whose data set is missing, or another one, is paused until it is back; a queued one stays queued."""
    state, waits, fault = run.history.state, run.history.waits_for_data, run.supply.fault
    if fault and not waits and state in (RunState.QUEUED, RunState.RUNNING):
        state = RunState.PAUSED if state is RunState.RUNNING else state
        await run.change_state(
            state, f"{fault}; the run goes on by itself once the data set is as it was", waits_for_data=True
        )
    elif not fault and waits and state is RunState.PAUSED:
        await run.resume(DATA_IS_BACK)
    elif not fault and waits and state is RunState.QUEUED:
        await run.change_state(state, DATA_IS_BACK)


def reason_to_fail(run: Run) -> str | None:
    """Why training cannot go on, or None."""
    limit = run.history.spec.retry.max_trainer_restarts
    if limit is not None and run.history.restarts > limit:
        return (
            f"the trainer was started again {run.history.restarts} times without a new checkpoint in between; "
            f"retry.max_trainer_restarts = {limit}; its log says why it died"
        )
    return run.history.training_failed


def deadline_passed(run: Run) -> str | None:
    """Why a run has to end although it could go on, or None."""
    limit = run.history.spec.deadlines.run_seconds
    if limit is None or (datetime.now(UTC) - run.history.created_at).total_seconds() < limit:
        return None
    return f"deadlines.run_seconds = {limit:g} have passed since the run was created"


async def start_when_staffed(run: Run) -> None:
    """A queued run starts once its trainer has published v0 and a worker can generate."""
    if run.history.version_number >= 0 and run.workers and not run.supply.fault:
        await run.change_state(RunState.RUNNING, "a trainer and a rollout worker have joined")


async def take_step(run: Run) -> bool:
    """One decision of a running run, stored before it takes effect; False when there is nothing to decide now."""
    if reason := reason_to_end(run):
        return await end_when_evaluated(run, reason)
    if run.unscored_in_a_row >= UNSCORED_LIMIT:
        await run.change_state(RunState.PAUSED, no_verdicts(run))
        return True
    if run.offering.refused:
        await run.change_state(RunState.PAUSED, f"{run.offering.refused}; resume tries again")
        return True
    # A record about groups that follows an ISSUE says that its prompts are offered.
    return run.offering.unoffered is None and await decide(run)


async def decide(run: Run) -> bool:
    """One decision about groups; False when there is none to make now."""
    queue = run.queue
    if run.history.spec.curriculum.skips and (drop := queue.plan_recorded()):
        await run.append(drop)
    elif issue := queue.plan_issue():
        await run.issue(issue)
    elif drop := queue.plan_drop():
        await run.drop(drop)
    elif batch := queue.plan_batch():
        await emit_or_pause(run, batch)
    elif queue.at_generation_limit:
        await run.change_state(RunState.PAUSED, limit_reached(run))
    else:
        return False
    return True


async def emit_or_pause(run: Run, batch: Batch) -> None:
    """A batch that the server takes no message for stays to be emitted, once a person has mended that and resumes."""
    try:
        await run.emit(batch)
    except ConfigError as error:
        await run.change_state(RunState.PAUSED, f"batch {batch.k}: {error}; resume tries again")


def reason_to_end(run: Run) -> str | None:
    """Why a running run has nothing left to do, or None."""
    target, reward = run.history.spec.trainer.target_reward, run.history.recent_reward()
    if target is not None and reward is not None and reward >= target:
        return f"mean reward of the last 5 steps is {reward:.3f}, target_reward is {target:g}"
    if not run.queue.finished:
        return None
    if run.queue.k >= run.history.spec.trainer.total_steps:
        return f"all {run.queue.k} training steps have their batch"
    return f"the data is exhausted after {run.queue.next_n} groups"


async def end_when_evaluated(run: Run, reason: str) -> bool:
    """Nothing more is issued; the run ends once its versions, the last one too, are evaluated as it asks for."""
    run.evaluating.last = run.queue.k
    if not run.evaluating.pending:
        await end(run, reason)
        return True
    if run.queue.live:
        await run.settle(DropReason.RUN_ENDED)
    return False


async def end(run: Run, reason: str, ends_as: RunState = RunState.SUCCEEDED) -> None:
    """Settle what is left over; the trainer finishes the batches that it has, and checkpoints."""
    await run.settle(DropReason.RUN_ENDED)
    await run.change_state(RunState.STOPPING, reason, ends_as=ends_as)


async def fail(run: Run, reason: str) -> None:
    """Training cannot go on by itself: everything is kept for a person to look at, and nothing more is generated."""
    await run.settle(DropReason.RUN_ENDED)
    await run.change_state(RunState.FAILED, reason)


async def end_when_checkpointed(run: Run) -> None:
    """A stopping run ends when the newest checkpoint covers its last batch, or when it never had a trainer."""
    if run.history.checkpointed or not run.history.lineages:
        await run.change_state(run.history.ends_as, run.history.reason)


def no_verdicts(run: Run) -> str:
    """A verifier that fails on everything, or workers of a newer release than ours, would burn prompts for ever."""
    return (
        f"none of the last {run.unscored_in_a_row} groups has verdicts, the newest because {run.unscored_because}; "
        f"resume goes on"
    )


def limit_reached(run: Run) -> str:
    """What a person must know to decide whether more generation is worth it."""
    queue = run.queue
    sampled = queue.tally.scored_groups
    rate = queue.tally.kept_groups / sampled if sampled else 0.0
    return (
        f"filter.max_generation_batches = {queue.generation_limit} reached for batch {queue.k}: "
        f"{queue.kept} of {queue.rules.batch_size} groups kept, keep rate of the run {rate:.3f}; "
        f"resume allows as many again"
    )
