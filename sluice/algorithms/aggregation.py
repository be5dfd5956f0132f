"""How token losses become one number, as a weight for each token.

Every mode is a weighted sum of token losses, and its denominators count the whole mini-batch over all ranks. So the
loss of a micro-batch is `Σ weight · token loss`, micro-batches and ranks simply add up, and the gradient cannot depend
on how the mini-batch was split, packed or shared out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Mode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True)
class Denominators:
    """Response tokens, and responses with at least one token, of a whole mini-batch over all ranks."""

    tokens: int
    sequences: int


def count_denominators(lengths: Iterable[int]) -> Denominators:
    """Count a mini-batch from its response lengths (tokens). Empty responses count nowhere: they have no loss."""
    trainable = [length for length in lengths if length > 0]
    return Denominators(sum(trainable), len(trainable))


def token_weight(mode: Mode, length: int, totals: Denominators, max_response_length: int) -> float:
    """Weight of each token loss of one response.

    - `token-mean`: `1 / tokens` (DAPO: long responses weigh more)
    - `seq-mean-token-sum`: `1 / sequences`
    - `seq-mean-token-mean`: `1 / (sequences · length)` (GRPO: each response weighs the same)
    - `seq-mean-token-sum-norm`: `1 / (sequences · max_response_length)` (Dr. GRPO: a constant for all lengths)

    Args:
        length: response tokens, ≥ 1.
        totals: counts of the mini-batch over all ranks.
        max_response_length: the run's limit, in tokens.

    Source: verl `agg_loss`; its factor for the data-parallel average is the caller's.
    """
    match mode:
        case "token-mean":
            return 1.0 / totals.tokens
        case "seq-mean-token-sum":
            return 1.0 / totals.sequences
        case "seq-mean-token-mean":
            return 1.0 / (totals.sequences * length)
        case "seq-mean-token-sum-norm":
            return 1.0 / (totals.sequences * max_response_length)
