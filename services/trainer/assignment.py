"""From a BATCH record to the responses that each rank trains in each optimizer update."""

from __future__ import annotations

from collections.abc import Sequence

from services.trainer.forest import Response
from sluice.algorithms.advantages import group_advantages
from sluice.algorithms.shaping import trained_tokens
from sluice.config import RunSpec
from sluice.errors import WireError
from sluice.types import Batch, BatchGroup, Rollout, RolloutSummary


def split_mini_batches(batch: Batch, spec: RunSpec) -> list[tuple[BatchGroup, ...]]:
    """The groups of each optimizer update of one pass, over all ranks, in the order of the record.

    A mini-batch has `prompts_per_step / updates_per_step` groups; the last one of a short batch may have fewer. One
    without a trainable token makes no update and is left out.
    """
    size = spec.trainer.prompts_per_step // spec.trainer.updates_per_step
    parts = [batch.groups[at : at + size] for at in range(0, len(batch.groups), size)]
    return [part for part in parts if any(_trained(r, spec) for g in part for r in g.rollouts)]


def share_out(groups: Sequence[BatchGroup], ranks: int) -> list[list[BatchGroup]]:
    """Whole groups for each rank, balanced by response tokens: the longest next, to the rank with the least."""
    shares: list[list[BatchGroup]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for group in sorted(groups, key=_tokens, reverse=True):
        rank = loads.index(min(loads))
        shares[rank].append(group)
        loads[rank] += _tokens(group)
    return shares


def make_responses(group: BatchGroup, rollouts: Sequence[Rollout], spec: RunSpec) -> list[Response]:
    """What training needs of a group. Responses without a token, or filtered, are in its advantages and nowhere else.

    Args:
        rollouts: the group's rollouts as fetched, in order.

    Raises:
        WireError: the rollouts are not those that the record describes.
    """
    for i, (summary, rollout) in enumerate(zip(group.rollouts, rollouts, strict=True)):
        found = (rollout.n, rollout.attempt, rollout.i, len(rollout.token_ids), rollout.prompt_token_ids)
        if found != (group.n, group.attempt, i, summary.length, rollouts[0].prompt_token_ids):
            raise WireError(
                f"group {group.n} names rollout {group.n}/{group.attempt}/{i} of {summary.length} tokens, but "
                f"{rollout.n}/{rollout.attempt}/{rollout.i} of {len(rollout.token_ids)} tokens is stored there"
            )
    return [
        Response(
            prompt=rollout.prompt_token_ids,
            tokens=rollout.token_ids,
            behaviour=rollout.logprobs,
            advantage=advantage,
            group=group.n,
        )
        for rollout, summary, advantage in zip(rollouts, group.rollouts, advantages_of(group, spec), strict=True)
        if _trained(summary, spec)
    ]


def advantages_of(group: BatchGroup, spec: RunSpec) -> list[float]:
    """Of each response of the group, filtered ones included, from the rewards in the record."""
    rewards = [r.reward for r in group.rollouts]
    return group_advantages(rewards, spec.algorithm.norm_adv_by_std, spec.algorithm.singleton_advantage or "reward")


def _trained(summary: RolloutSummary, spec: RunSpec) -> int:
    return trained_tokens(summary.length, summary.finish_reason, spec.algorithm.overlong_filtering)


def _tokens(group: BatchGroup) -> int:
    return sum(r.length for r in group.rollouts)
