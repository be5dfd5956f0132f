"""From a BATCH record to the responses that each rank trains in each optimizer update."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from services.trainer.forest import Response
from sluice.algorithms.advantages import group_advantages
from sluice.algorithms.aggregation import Denominators, count_denominators, token_weight
from sluice.config import RunSpec
from sluice.errors import WireError
from sluice.types import Batch, BatchGroup, Rollout


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The groups of one optimizer update, over all ranks, with the counts that its loss divides by."""

    groups: tuple[BatchGroup, ...]
    totals: Denominators


def split_mini_batches(batch: Batch, updates: int) -> list[MiniBatch]:
    """`updates` mini-batches of whole groups in the order of the record, of sizes that differ by at most one.

    One without a trainable token makes no update and is left out, so a short batch may have fewer.
    """
    borders = [round(len(batch.groups) * i / updates) for i in range(updates + 1)]
    parts = [batch.groups[a:b] for a, b in itertools.pairwise(borders)]
    found = [MiniBatch(part, count_denominators(r.length for g in part for r in g.rollouts)) for part in parts]
    return [m for m in found if m.totals.tokens]


def share_out(groups: Sequence[BatchGroup], ranks: int) -> list[list[BatchGroup]]:
    """Whole groups for each rank, balanced by response tokens: the longest next, to the rank with the least."""
    shares: list[list[BatchGroup]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for group in sorted(groups, key=_tokens, reverse=True):
        rank = loads.index(min(loads))
        shares[rank].append(group)
        loads[rank] += _tokens(group)
    return shares


def make_responses(
    group: BatchGroup, rollouts: Sequence[Rollout], totals: Denominators, spec: RunSpec, ranks: int
) -> list[Response]:
    """What training needs of a group; responses without a token are part of its advantages and of nothing else.

    Args:
        rollouts: the group's rollouts as fetched, in order.
        totals: counts of the mini-batch that the group is in.
        ranks: data-parallel size; ZeRO averages gradients over it, so each weight is multiplied by it.

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
    advantages = group_advantages([r.reward for r in group.rollouts], spec.algorithm.norm_adv_by_std)
    mode, longest = spec.algorithm.loss_agg_mode, spec.rollout.max_response_length
    return [
        Response(
            prompt=rollout.prompt_token_ids,
            tokens=rollout.token_ids,
            behaviour=rollout.logprobs,
            advantage=advantage,
            weight=ranks * token_weight(mode, len(rollout.token_ids), totals, longest),
        )
        for rollout, advantage in zip(rollouts, advantages, strict=True)
        if rollout.token_ids
    ]


def _tokens(group: BatchGroup) -> int:
    return sum(r.length for r in group.rollouts)
