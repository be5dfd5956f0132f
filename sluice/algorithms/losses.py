"""DAPO's token loss and its metrics: pure functions of tensors, one entry a response token.

All tensors are float32 of shape [n] with n the response tokens at hand; log-probs are in nats. Token losses are summed
with the weights of `sluice.algorithms.aggregation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""exp(20) is about 5e8: large enough never to matter, small enough never to overflow float32."""


@dataclass(frozen=True, slots=True)
class ClipRange:
    """Bounds of the ratio: [1 − low, 1 + high], and `dual` (> 1) for negative advantages."""

    low: float
    high: float
    dual: float


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """`loss` carries the gradient; the rest is detached and says where a clip decided."""

    loss: Tensor
    clipped_high: Tensor
    """bool: advantage > 0 and ratio above 1 + high: no gradient."""
    clipped_low: Tensor
    """bool: advantage < 0 and ratio below 1 − low: no gradient."""
    dual_clipped: Tensor
    """bool: advantage < 0 and ratio above `dual`: no gradient."""
    log_ratio: Tensor
    """log π − log π_proximal, after the clamp."""


def dapo_token_loss(logp: Tensor, proximal: Tensor, advantages: Tensor, clip: ClipRange) -> TokenLoss:
    """Clipped policy loss of each token, with decoupled bounds and a dual clip.

    With d = clamp(logp − proximal, ±20), r = exp(d) and M = max(−A·r, −A·clip(r, 1 − low, 1 + high)):
    loss = M for A ≥ 0, and min(M, −A·dual) for A < 0. At r = 1 its gradient is −A·∇logp, the plain policy gradient.

    Args:
        logp: log-probs under the policy being trained; the only input that needs a gradient.
        proximal: log-probs under the anchor of the ratio.
        advantages: the response's advantage at each of its tokens.

    Source: DAPO, eq. 8 (clip-higher); dual clip and clamp as in verl `compute_policy_loss_vanilla`.
    """
    log_ratio = torch.clamp(logp - proximal, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = torch.exp(log_ratio)
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1.0 - clip.low, 1.0 + clip.high)
    pessimistic = torch.maximum(unclipped, clipped)
    bound = -advantages * clip.dual
    negative = advantages < 0
    loss = torch.where(negative, torch.minimum(pessimistic, bound), pessimistic)
    with torch.no_grad():
        return TokenLoss(
            loss=loss,
            clipped_high=(advantages > 0) & (ratio > 1.0 + clip.high),
            clipped_low=negative & (ratio < 1.0 - clip.low),
            dual_clipped=negative & (pessimistic > bound),
            log_ratio=log_ratio.detach(),
        )


def importance_weights(proximal: Tensor, behaviour: Tensor, cap: float | None) -> Tensor:
    """Truncated importance weight of each token, `min(exp(proximal − behaviour), cap)`; no gradient.

    It corrects for sampling from an older policy, or from the engine's slightly different arithmetic. Without a cap the
    correction is off and every weight is 1.

    Source: token-level truncated importance sampling (verl rollout correction, `token` level).
    """
    if cap is None:
        return torch.ones_like(proximal)
    with torch.no_grad():
        difference = torch.clamp(proximal - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return torch.clamp(torch.exp(difference), max=cap)


@dataclass(frozen=True, slots=True)
class MetricSums:
    """Sums over tokens; they add up over micro-batches and ranks, and divided by `tokens` they are the metrics."""

    tokens: float = 0.0
    loss: float = 0.0
    """Weighted, so this one is the loss itself."""
    entropy: float = 0.0
    clipped_high: float = 0.0
    clipped_low: float = 0.0
    dual_clipped: float = 0.0
    log_ratio: float = 0.0
    logprob_gap: float = 0.0
    """Σ |log π_trainer − log π_behaviour|."""
    importance_weight: float = 0.0


def metric_sums(token: TokenLoss, weighted: Tensor, entropy: Tensor, gap: Tensor, importance: Tensor) -> Tensor:
    """The fields of `MetricSums` as one float64 tensor [9], ready to be added up over ranks."""
    parts = (
        torch.ones_like(gap),
        weighted.detach(),
        entropy,
        token.clipped_high,
        token.clipped_low,
        token.dual_clipped,
        token.log_ratio,
        gap,
        importance,
    )
    return torch.stack([part.to(torch.float64).sum() for part in parts])
