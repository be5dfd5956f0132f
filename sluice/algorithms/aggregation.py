"""How token losses become one number, as a weight for each token.

Every mode is a weighted sum of token losses, and its denominators count the whole mini-batch over all ranks. So the
loss of a micro-batch is `Σ weight · token loss`, micro-batches and ranks simply add up, and the gradient cannot depend
on how the mini-batch was split, packed or shared out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "group-mean-token-mean",
]


@dataclass(frozen=True, slots=True)
class Denominators:
    """What a whole mini-batch holds, over all ranks. Responses without a trained token count nowhere."""

    tokens: int
    """Trained tokens: response tokens that are neither filtered nor rejected."""
    sequences: int
    """Responses with at least one trained token."""
    groups: Mapping[int, int] = field(default_factory=dict)
    """Issue number → trained tokens, of each group with at least one."""


def count_denominators(responses: Iterable[tuple[int, int]]) -> Denominators:
    """Count a mini-batch from the (issue number, trained tokens) of each of its responses."""
    trained = [(n, tokens) for n, tokens in responses if tokens > 0]
    groups: dict[int, int] = {}
    for n, tokens in trained:
        groups[n] = groups.get(n, 0) + tokens
    return Denominators(sum(groups.values()), len(trained), groups)


def token_weight(mode: Mode, n: int, tokens: int, totals: Denominators, scale_factor: float) -> float:
    """Weight of each token loss of one response with `tokens` ≥ 1 trained tokens, of group `n`.

    - `token-mean`: `1 / tokens of the mini-batch` (DAPO as released: long responses weigh more)
    - `token-sum`: 1
    - `seq-mean-token-sum`: `1 / sequences`
    - `seq-mean-token-mean`: `1 / (sequences · tokens)` (GRPO: each response weighs the same)
    - `seq-mean-token-sum-norm`: `1 / (sequences · scale_factor)` (Dr. GRPO: a constant for all lengths)
    - `group-mean-token-mean`: `1 / (groups · tokens of the group)` (DAPO as printed: each group weighs the same)

    Args:
        totals: counts of the mini-batch over all ranks.
        scale_factor: of `seq-mean-token-sum-norm`, in tokens.

    Source: verl `agg_loss` for the first five, whose factor for the data-parallel average is the caller's; DAPO, eq. 8,
    for the last.
    """
    match mode:
        case "token-mean":
            return 1.0 / totals.tokens
        case "token-sum":
            return 1.0
        case "seq-mean-token-sum":
            return 1.0 / totals.sequences
        case "seq-mean-token-mean":
            return 1.0 / (totals.sequences * tokens)
        case "seq-mean-token-sum-norm":
            return 1.0 / (totals.sequences * scale_factor)
        case "group-mean-token-mean":
            return 1.0 / (len(totals.groups) * totals.groups[n])
