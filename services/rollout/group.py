"""From a delivered prompt to a stored group: one attempt."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from services.rollout import metrics
from services.rollout.attempts import Attempts
from services.rollout.completion import (
    Completion,
    EngineUnfinishedError,
    ForeignWeightsError,
)
from services.rollout.engine import Engine, EngineLimits
from services.rollout.gate import Gate
from services.rollout.in_hand import InHand
from services.rollout.run import NATS_FAULTS, Run
from services.rollout.scoring import ResponseText, Scorer, judge
from services.rollout.weight_sync import WeightSync
from sluice.errors import TransientError, WaitTimeoutError
from sluice.packed import TokenIds
from sluice.telemetry import log_policy_version
from sluice.transport.engine import EngineDownError, EngineRefusedError
from sluice.transport.queues import Delivery, store_group, store_rollouts
from sluice.types import Group, GroupStatus, Prompt, Rollout, VerdictKind

G = TypeVar("G")
RETRY_SECONDS = 1.0
"""A prompt that is handed back after a fault waits this long before somebody gets it."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a worker needs for the groups of one run."""

    run: Run
    engine: Engine
    limits: EngineLimits
    gate: Gate
    sync: WeightSync
    attempts: Attempts
    in_hand: InHand
    text: ResponseText
    scorer: Scorer
    over: asyncio.Event
    """The run wants no more groups: prompts are acked instead of handed back."""


async def roll_out(delivery: Delivery, bench: Bench) -> None:
    """Make one attempt at a prompt, and settle its delivery.

    consumes:     one prompt of PROMPTS
    produces:     its rollouts in ROLLOUTS, then its group in GROUPS; then the prompt is acked
    waits for:    the policy version ("policy_version"), the engine ("generate"), verdicts ("reward"), room ("store")
    unblocked by: the trainer, the engine, the reward service, a checkpoint that makes room in a full stream; each wait
                  has its deadline, in the run's spec or the bus's
    on failure:   the prompt is handed back; what is finished is kept, and waits on for its room. An attempt in which
                  the engine died or refused is counted, and after rollout.max_attempts of them the group is stored as
                  `failed`. A group that somebody else stored first is left to them
    """
    status = "handed_back"
    try:
        with bench.in_hand.holding(delivery):
            status = await _attempt(delivery.prompt, bench)
    except asyncio.CancelledError:
        if bench.over.is_set():
            status = "cancelled"
        await quietly(delivery.ack() if bench.over.is_set() else delivery.hand_back(), bench)
        raise
    except (TransientError, WaitTimeoutError, *NATS_FAULTS) as error:
        bench.run.log.warning("prompt_handed_back", error=str(error))
        await quietly(delivery.hand_back(RETRY_SECONDS), bench)
    else:
        await quietly(delivery.ack(), bench)  # unanswered, it is delivered again, and that attempt loses
    finally:
        metrics.GROUPS.labels(bench.run.id, status).inc()


async def _attempt(prompt: Prompt, bench: Bench) -> str:
    """Store the group of this prompt; returns its status, or `lost` when another attempt was first."""
    return await attempted(
        prompt.n,
        bench,
        bench.attempts,
        make=lambda attempt, alone: _make(prompt, attempt, alone, bench),
        give_up=lambda attempt, error: _failed(prompt, attempt, error, bench),
        commit=lambda group: _commit(group, bench),
    )


async def attempted(
    n: int,
    bench: Bench,
    attempts: Attempts,
    *,
    make: Callable[[str, bool], Awaitable[G]],
    give_up: Callable[[str, str], G],
    commit: Callable[[G], Awaitable[str]],
) -> str:
    """One attempt at prompt n, on record while it lasts; what `commit` says of its group.

    Args:
        make: the group, from the attempt's name and whether it must be alone on the engine.
        give_up: the group that stands for none, from the attempt's name and the reason.

    Raises:
        TransientError: the engine died or refused, and the prompt is worth more attempts.
    """
    attempt, most = secrets.token_hex(8), bench.run.spec.rollout.max_attempts
    past = await attempts.begin(n, attempt)
    failed, stored = past.failed, False
    try:
        if failed < most:
            group = await make(attempt, past.suspect)
        else:
            group = give_up(attempt, f"the engine died or refused in {failed} attempts")
        status = await commit(group)
        stored = True
    except (EngineDownError, EngineRefusedError) as error:
        failed += 1
        if failed < most:
            raise TransientError(f"attempt {failed} failed: {error}") from None
        status = await commit(give_up(attempt, str(error)))
        stored = True
    finally:
        if stored:
            await quietly(attempts.forget(n), bench)
        else:
            await quietly(attempts.end(n, attempt, engine_failed=failed > past.failed), bench)
    return status


async def _make(prompt: Prompt, attempt: str, alone: bool, bench: Bench) -> Group:
    """Generate, judge and store the rollouts; what is returned is the group, not yet stored."""
    started = time.monotonic()
    completions = await _generate(prompt, alone, bench)
    generated = time.monotonic() - started
    judged = await judge(bench.run.spec, prompt, completions, bench.text, bench.scorer)
    summaries = judged.summaries
    if judged.keep:
        shared = TokenIds(prompt.token_ids)
        rollouts = [_rollout(prompt, shared, attempt, i, completion) for i, completion in enumerate(completions)]
        stored = await keep_storing(lambda: store_rollouts(bench.run.bus, rollouts), bench)
        summaries = tuple(
            replace(s, sequences=at.sequences, content_hash=at.content_hash, offset=at.offset, nbytes=at.nbytes)
            for s, at in zip(summaries, stored, strict=True)
        )
    return Group(
        run_id=prompt.run_id,
        n=prompt.n,
        attempt=attempt,
        status=judged.status,
        rollouts=summaries,
        worker=bench.run.worker,
        engine=bench.engine.url,
        min_version=prompt.min_version,
        generate_seconds=generated,
        reward_seconds=judged.seconds,
        sample_text=judged.sample_text,
        error=judged.error,
    )


async def _generate(prompt: Prompt, alone: bool, bench: Bench) -> list[Completion]:
    """Completions whose every token comes from a version that the prompt may see."""
    run = bench.run.id
    log_policy_version(await bench.sync.at_least(prompt.min_version))
    try:
        async with bench.gate.exclusive() if alone else bench.gate.shared():
            with metrics.GENERATE_SECONDS.labels(run).time(), metrics.waiting(run, "generate"):
                completions = await bench.engine.generate(
                    prompt, bench.limits, bench.run.spec.deadlines.generate_seconds
                )
        _check_versions(prompt, completions)
    except (EngineDownError, ForeignWeightsError) as error:
        metrics.ENGINE_FAILURES.labels(run, "died" if isinstance(error, EngineDownError) else "foreign_weights").inc()
        await bench.sync.engine_lost()
        raise
    except (EngineRefusedError, EngineUnfinishedError) as error:
        metrics.ENGINE_FAILURES.labels(run, "refused" if isinstance(error, EngineRefusedError) else "unfinished").inc()
        raise
    except WaitTimeoutError:
        metrics.ENGINE_FAILURES.labels(run, "timeout").inc()
        raise
    metrics.TOKENS.labels(run).inc(sum(len(completion.token_ids) for completion in completions))
    metrics.TOKEN_PROBABILITY.labels(run).inc(sum(math.exp(p) for c in completions for p in c.logprobs))
    return completions


def _check_versions(prompt: Prompt, completions: list[Completion]) -> None:
    oldest = min(completion.oldest_version for completion in completions)
    if oldest.number < prompt.min_version:
        raise ForeignWeightsError(
            f"engine sampled from {oldest}; prompt {prompt.n} needs v{prompt.min_version} at least"
        )


def _rollout(prompt: Prompt, token_ids: TokenIds, attempt: str, i: int, completion: Completion) -> Rollout:
    return Rollout(
        run_id=prompt.run_id,
        n=prompt.n,
        attempt=attempt,
        i=i,
        prompt_token_ids=token_ids,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        spans=completion.spans,
    )


def _failed(prompt: Prompt, attempt: str, error: str, bench: Bench) -> Group:
    return Group(
        run_id=prompt.run_id,
        n=prompt.n,
        attempt=attempt,
        status=GroupStatus.FAILED,
        rollouts=(),
        worker=bench.run.worker,
        engine=bench.engine.url,
        min_version=prompt.min_version,
        generate_seconds=0.0,
        reward_seconds=0.0,
        error=error,
    )


async def _commit(group: Group, bench: Bench) -> str:
    won = await keep_storing(lambda: store_group(bench.run.bus, group), bench)
    bench.run.log.info(
        "group_stored" if won else "group_lost_to_another_attempt",
        status=str(group.status),
        rewards=[round(r.reward, 3) if r.verdict is VerdictKind.SCORED else None for r in group.rollouts],
        attempt=group.attempt,
        tokens=sum(rollout.length for rollout in group.rollouts),
        generate_seconds=round(group.generate_seconds, 3),
        reward_seconds=round(group.reward_seconds, 3),
        error=group.error,
    )
    return str(group.status) if won else "lost"


async def keep_storing(store: Callable[[], Awaitable[G]], bench: Bench) -> G:
    """What `store` returns, asked again whenever the bus deadline passes: tokens cost more than patience."""
    with metrics.waiting(bench.run.id, "store"):
        while True:
            try:
                return await store()
            except (TransientError, TimeoutError) as error:
                bench.run.log.warning("still_waiting", wait="store", error=str(error))


async def quietly(step: Awaitable[object], bench: Bench) -> None:
    """A step that only saves work: redelivery and the one commit per group put right what it leaves undone."""
    try:
        await step
    except (TransientError, *NATS_FAULTS) as error:
        bench.run.log.warning("step_left_undone", error=str(error))
