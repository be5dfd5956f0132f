"""What is done about a behaviour policy that is not the trainer's: weights, masked weights, and rejection.

The two differ because rollouts are older than the weights, and because engine and trainer compute with different
kernels and precisions. `log w = trainer − behaviour`, clamped to ±20, is the token's log importance weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sluice.algorithms.losses.kl import KlType, kl_estimate
from sluice.algorithms.losses.policy import LOG_RATIO_LIMIT
from sluice.algorithms.losses.responses import Responses

Level = Literal["token", "sequence"]
Rejection = Literal[
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]


@dataclass(frozen=True, slots=True)
class WeightRule:
    """How importance weights are bounded. `masked`: those outside [floor, cap] become 0; else they are cut at `cap`."""

    level: Level
    cap: float
    masked: bool = False
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class RejectionRule:
    """What leaves the loss. `lower` and `upper` bound w itself for k1, and `upper` the estimate for k2 and k3."""

    statistic: Rejection
    upper: float
    lower: float = 0.0


def raw_weights(trainer: Tensor, behaviour: Tensor, level: Level, responses: Responses) -> Tensor:
    """Importance weight of each token before any bound; no gradient.

    `token`: w. `sequence`: exp(clamp(Σ over the response of trainer − behaviour, ±20)), the same at all its tokens.
    """
    with torch.no_grad():
        log_weights = trainer - behaviour
        if level == "sequence":
            log_weights = responses.spread(responses.sum(log_weights))
        return torch.exp(torch.clamp(log_weights, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def importance_weights(raw: Tensor, rule: WeightRule) -> Tensor:
    """`min(raw, cap)` (truncated), or `raw` inside [floor, cap] and 0 outside (masked, "IcePop").

    A masked token stays in the denominators of the loss; `kept_tokens` is for what shall leave them.

    Source: truncated importance sampling, and IcePop; verl `compute_rollout_correction_weights`.
    """
    if not rule.masked:
        return torch.clamp(raw, max=rule.cap)
    inside = (raw >= rule.floor) & (raw <= rule.cap)
    return torch.where(inside, raw, torch.zeros_like(raw))


def kept_tokens(trainer: Tensor, behaviour: Tensor, rule: RejectionRule, responses: Responses) -> Tensor:
    """Which tokens stay in the loss: bool [n]. A rejected token leaves every denominator too.

    A statistic is an estimate (`k1`, `k2`, `k3`, of `kl_estimate`) at each token, or its sum, mean or maximum over a
    response, which then stays or goes as a whole. For k1 the bounds are on the weight: log lower ≤ k1 ≤ log upper with
    k1 = log w, so `seq_sum_k1` bounds the weight of the response and `seq_mean_k1` its geometric mean over tokens.

    Source: verl `compute_rollout_rejection_mask`, whose k1 is −log w: its bounds are on 1 / w.
    """
    with torch.no_grad():
        scope, kind = rule.statistic.rsplit("_", 1)
        values = _reduce(scope, _estimate(kind, trainer, behaviour), responses)
        # Negated, so that NaN is kept: it must reach the loss, where it is found and stops the run.
        if kind != "k1":
            return ~(values > rule.upper)
        lower = math.log(rule.lower) if rule.lower > 0.0 else -math.inf
        return ~((values < lower) | (values > math.log(rule.upper)))


def _estimate(kind: str, trainer: Tensor, behaviour: Tensor) -> Tensor:
    """k1 = log w; k2 and k3 of KL(behaviour ‖ trainer), the tokens being sampled from the former."""
    known: dict[str, KlType] = {"k2": "k2", "k3": "k3"}
    if kind in known:
        return kl_estimate(known[kind], behaviour, trainer)
    return torch.clamp(trainer - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _reduce(scope: str, values: Tensor, responses: Responses) -> Tensor:
    match scope:
        case "seq_sum":
            return responses.spread(responses.sum(values))
        case "seq_mean":
            return responses.spread(responses.mean(values, torch.ones_like(values, dtype=torch.bool)))
        case "seq_max":
            return responses.spread(responses.max(values))
        case _:
            return values
