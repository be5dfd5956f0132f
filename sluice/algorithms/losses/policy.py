"""Policy losses of each token, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sluice.algorithms.losses.responses import Responses

LOG_RATIO_LIMIT = 20.0
"""exp(20) is about 5e8: large enough never to matter, small enough never to overflow float32."""

LossMode = Literal["vanilla", "gspo", "cispo"]


@dataclass(frozen=True, slots=True)
class ClipRange:
    """Bounds of the ratio: [1 − low, 1 + high], and `dual` (> 1) for negative advantages. `low` ≥ 1 is no bound."""

    low: float
    high: float
    dual: float

    def clip(self, ratio: Tensor) -> Tensor:
        return torch.clamp(ratio, 1.0 - self.low, 1.0 + self.high)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """`loss` carries the gradient; the rest is detached and says where a clip decided."""

    loss: Tensor
    clipped_high: Tensor
    """bool: ratio above 1 + high, where that bound decides: no gradient (`cispo`: a bounded one)."""
    clipped_low: Tensor
    """bool: ratio below 1 − low, where that bound decides."""
    dual_clipped: Tensor
    """bool: advantage < 0 and ratio above `dual`: no gradient."""
    ratio: Tensor
    """What was clipped: π / π_proximal of the token, or of its response (`gspo`)."""
    log_ratio: Tensor
    """log π − log π_proximal of the token, after the clamp."""


def policy_token_loss(  # noqa: PLR0913 (the union of what the three losses need, by keyword)
    mode: LossMode,
    *,
    logp: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    clip: ClipRange,
    responses: Responses,
    kept: Tensor,
) -> TokenLoss:
    """The loss called `mode`. `kept` (bool) marks the tokens that a mean over a response (`gspo`) is taken of."""
    match mode:
        case "vanilla":
            return dapo_token_loss(logp, proximal, advantages, clip)
        case "gspo":
            return gspo_token_loss(logp, proximal, advantages, clip, responses, kept)
        case "cispo":
            return cispo_token_loss(logp, proximal, advantages, clip)


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
    log_ratio = _log_ratio(logp, proximal)
    ratio = torch.exp(log_ratio)
    pessimistic = torch.maximum(-advantages * ratio, -advantages * clip.clip(ratio))
    bound = -advantages * clip.dual
    negative = advantages < 0
    loss = torch.where(negative, torch.minimum(pessimistic, bound), pessimistic)
    dual_clipped = (negative & (pessimistic > bound)).detach()
    return _token_loss(loss, ratio, log_ratio, advantages, clip, dual_clipped)


def gspo_token_loss(
    logp: Tensor, proximal: Tensor, advantages: Tensor, clip: ClipRange, responses: Responses, kept: Tensor
) -> TokenLoss:
    """Sequence-level clipped loss, written for each token.

    A response has the ratio s = exp(mean over its kept tokens of clamp(logp − proximal, ±20)), a token the ratio
    s_t = s · exp(logp − stop(logp)), which is s with the gradient s·∇logp; loss = max(−A·s_t, −A·clip(s_t)). Under
    `seq-mean-token-mean` that sums to GSPO's objective and its gradient. There is no dual clip.

    Source: GSPO, eqs. 5 and 7 (sequence ratio) and 13, 14 (the form for tokens); verl `compute_policy_loss_gspo`.
    """
    log_ratio = _log_ratio(logp, proximal)
    of_response = responses.spread(responses.mean(log_ratio.detach(), kept))
    ratio = torch.exp(of_response + logp - logp.detach())
    loss = torch.maximum(-advantages * ratio, -advantages * clip.clip(ratio))
    return _token_loss(loss, ratio, log_ratio, advantages, clip, torch.zeros_like(kept))


def cispo_token_loss(logp: Tensor, proximal: Tensor, advantages: Tensor, clip: ClipRange) -> TokenLoss:
    """Policy gradient with a clipped ratio as its weight: loss = −A · stop(clip(r, 1 − low, 1 + high)) · logp.

    r is as in `dapo_token_loss`. No token loses its gradient: clipping bounds its size. MiniMax clips above only, which
    is `low` ≥ 1.

    Source: MiniMax-M1 (CISPO), eqs. 4 and 5; verl `compute_policy_loss_cispo`.
    """
    log_ratio = _log_ratio(logp, proximal).detach()
    ratio = torch.exp(log_ratio)
    return TokenLoss(
        loss=-advantages * clip.clip(ratio) * logp,
        clipped_high=ratio > 1.0 + clip.high,
        clipped_low=ratio < 1.0 - clip.low,
        dual_clipped=torch.zeros_like(ratio, dtype=torch.bool),
        ratio=ratio,
        log_ratio=log_ratio,
    )


def _log_ratio(logp: Tensor, proximal: Tensor) -> Tensor:
    return torch.clamp(logp - proximal, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _token_loss(
    loss: Tensor, ratio: Tensor, log_ratio: Tensor, advantages: Tensor, clip: ClipRange, dual_clipped: Tensor
) -> TokenLoss:
    ratio = ratio.detach()
    return TokenLoss(
        loss=loss,
        clipped_high=(advantages > 0) & (ratio > 1.0 + clip.high),
        clipped_low=(advantages < 0) & (ratio < 1.0 - clip.low),
        dual_clipped=dual_clipped,
        ratio=ratio,
        log_ratio=log_ratio.detach(),
    )
