"""Group-relative advantages: pure functions of a group's rewards, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 1e-6
"""Added to the standard deviation (not to the variance), as the published DAPO runs did."""


def group_advantages(rewards: Sequence[float], divide_by_std: bool = True) -> list[float]:
    """Advantage of each response of one group: `(r − mean) / (std + ε)`; every token of a response has the same one.

    The standard deviation is the sample one (n − 1). Without `divide_by_std` it is `r − mean`. Equal rewards give
    exactly 0, without the rounding that `r − mean` would leave. A group of one response has no mean to compare with:
    its advantage is its reward, `r / (1 + ε)` with `divide_by_std` and `r` without.

    Args:
        rewards: [n] rewards of the group's responses, shaping included; n ≥ 1.

    Returns:
        [n] advantages; for n > 1 they sum to 0 up to rounding.

    Raises:
        ValueError: no reward, or one that is not finite.

    Source: DAPO, eq. 9; verl `compute_grpo_outcome_advantage` for ε, the sample deviation and the group of one.
    """
    if not rewards or not all(math.isfinite(r) for r in rewards):
        raise ValueError(f"rewards of a group must be finite and at least one, not {list(rewards)}")
    if len(rewards) == 1:
        return [rewards[0] / (1.0 + EPSILON) if divide_by_std else rewards[0]]
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [r - mean for r in rewards]
    if not divide_by_std:
        return centred
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
    return [c / (std + EPSILON) for c in centred]
