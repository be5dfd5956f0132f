"""Estimates of a KL divergence from the sampled tokens alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sluice.algorithms.losses.policy import LOG_RATIO_LIMIT

KlType = Literal["k1", "k2", "k3"]


def kl_estimate(kind: KlType, logp: Tensor, other: Tensor) -> Tensor:
    """Estimate of KL(π ‖ π_other) at each token sampled from π, in nats, with gradient through `logp`.

    With d = clamp(logp − other, ±20):

    - `k1`: d. Unbiased, and negative as often as not. As a loss it has no effect on average: E[∇logp] = 0.
    - `k2`: d² / 2. Its gradient, d·∇logp, is on average that of the KL divergence.
    - `k3`: exp(−d) + d − 1. Unbiased and never negative; the one that GRPO used.

    Source: Schulman, "Approximating KL divergence"; verl `kl_penalty` (`kl`, `mse`, `low_var_kl`), which also clamps
    `k3` to ±10.
    """
    d = torch.clamp(logp - other, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    match kind:
        case "k1":
            return d
        case "k2":
            return d.square() / 2.0
        case "k3":
            return torch.expm1(-d) + d
