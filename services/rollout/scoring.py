"""From completions to a group's metadata: text for the verifier, verdicts, shaping, and what need not be stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from services.rollout import metrics
from services.rollout.completion import Completion
from services.rollout.run import RunUnfitError
from sluice.algorithms.shaping import overlong_penalty
from sluice.config import RunSpec
from sluice.errors import PermanentError
from sluice.types import GroupStatus, Prompt, RolloutSummary, ScoreItem, Verdict, VerdictKind

SAMPLE_CHARACTERS = 2000


class Scorer(Protocol):
    """Whoever gives verdicts: the reward service's client."""

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]: ...


class ResponseText:
    """Token ids to the text that verifiers and people read. Training never sees it."""

    def __init__(self, model: Path) -> None:
        """Raises: RunUnfitError: the model folder has no readable tokenizer.json."""
        path = model / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise RunUnfitError(f"model.path = {str(model)!r}: tokenizer.json cannot be read: {error}") from None

    def __call__(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


@dataclass(frozen=True, slots=True)
class Judged:
    """A group's verdicts; `summaries` name no stored rollouts yet."""

    status: GroupStatus
    summaries: tuple[RolloutSummary, ...]
    keep: bool
    """The rollouts can train, so they are stored."""
    sample_text: str
    seconds: float
    error: str


async def judge(
    spec: RunSpec, prompt: Prompt, completions: Sequence[Completion], text: ResponseText, scorer: Scorer
) -> Judged:
    """Ask for the verdicts of a group. A failure of a verifier is never a 0: it makes the group `verifier_failed`.

    Raises:
        TransientError: no reward replica answered within reward.deadline_seconds.
    """
    started = time.monotonic()
    responses = [text(completion.token_ids) for completion in completions]
    items = [_item(spec, prompt, i, completions[i], response) for i, response in enumerate(responses)]
    verdicts = await verdicts_of(prompt.run_id, items, scorer, partial(_by_policy, spec))
    seconds = time.monotonic() - started
    metrics.REWARD_SECONDS.labels(prompt.run_id).observe(seconds)
    failed = next((verdict for verdict in verdicts if verdict.kind is not VerdictKind.SCORED), None)
    pairs = zip(completions, verdicts, strict=True)
    summaries = tuple(_summary(spec, completion, verdict) for completion, verdict in pairs)
    return Judged(
        status=GroupStatus.SCORED if failed is None else GroupStatus.VERIFIER_FAILED,
        summaries=summaries,
        keep=failed is None and not (spec.filter.enable and _uniform(spec, summaries)),
        sample_text=responses[0][:SAMPLE_CHARACTERS],
        seconds=seconds,
        error="" if failed is None else f"{failed.kind}: {failed.message}",
    )


def _as_it_is(verdict: Verdict) -> Verdict:
    return verdict


async def verdicts_of(
    run_id: str, items: Sequence[ScoreItem], scorer: Scorer, policy: Callable[[Verdict], Verdict] = _as_it_is
) -> list[Verdict]:
    """A verdict for each item, in order, under `policy`; errors where the reward service will never judge them.

    Raises:
        TransientError: no reward replica answered within reward.deadline_seconds.
    """
    try:
        with metrics.waiting(run_id, "reward"):
            return [policy(verdict) for verdict in await scorer.score(items)]
    except PermanentError as error:
        return [Verdict(VerdictKind.ERROR, None, None, "", "", 0.0, str(error)) for _ in items]


def _item(spec: RunSpec, prompt: Prompt, i: int, completion: Completion, response: str) -> ScoreItem:
    return ScoreItem(
        id=f"{prompt.run_id}/{prompt.n}/{i}",
        data_source=spec.reward.verifier or prompt.data_source,
        prompt=prompt.text,
        response=response,
        ground_truth=prompt.ground_truth,
        extra_info=prompt.extra_info,
        response_length=len(completion.token_ids),
    )


def _by_policy(spec: RunSpec, verdict: Verdict) -> Verdict:
    """A failed check counts as wrong where the run says so; the reward service has counted the failure all the same."""
    if verdict.kind is VerdictKind.SCORED or spec.reward.on_failure == "drop_group":
        return verdict
    return replace(verdict, kind=VerdictKind.SCORED, acc=0.0, score=spec.reward.failure_score)


def _summary(spec: RunSpec, completion: Completion, verdict: Verdict) -> RolloutSummary:
    scored = verdict.kind is VerdictKind.SCORED
    length = len(completion.token_ids)
    oldest, newest = completion.oldest_version, completion.newest_version
    shaping = 0.0
    if scored and spec.reward.overlong_buffer:
        shaping = overlong_penalty(
            length,
            spec.rollout.max_response_length,
            spec.reward.overlong_buffer,
            spec.reward.overlong_penalty_factor,
        )
    return RolloutSummary(
        sequences=(),
        content_hash=b"",
        verdict=verdict.kind,
        acc=verdict.acc if scored and verdict.acc is not None else 0.0,
        score=verdict.score if scored and verdict.score is not None else 0.0,
        shaping=shaping,
        length=length,
        finish_reason=completion.finish_reason,
        oldest_version=oldest,
        newest_version=newest,
        spans=completion.spans if oldest != newest else (),
    )


def _uniform(spec: RunSpec, summaries: Sequence[RolloutSummary]) -> bool:
    outcomes = {getattr(summary, spec.filter.metric) for summary in summaries}
    return len(outcomes) < 2
