"""Group-relative advantages: pure functions of a group's rewards, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

EPSILON = 1e-6
"""Added to the standard deviation (not to the variance), as the published DAPO runs did."""

Singleton = Literal["reward", "zero"]
"""What a group of one response gets, which has no mean to compare with: its reward, or no gradient."""


def group_advantages(
    rewards: Sequence[float], divide_by_std: bool = True, singleton: Singleton = "reward"
) -> list[float]:
    """Advantage of each response of one group: `(r − mean) / (std + ε)`; every token of a response has the same one.

    The standard deviation is the sample one (n − 1). Without `divide_by_std` it is `r − mean`. Equal rewards give
    exactly 0. Rewards are compared by their distances to the first, so rewards that differ in their last bits alone
    keep those differences, and no advantage is ever larger than `√(n − 1)`, however close to 0 the deviation is.

    Args:
        rewards: [n] rewards of the group's responses, shaping included; n ≥ 1.
        singleton: a group of one has the advantage `r / (1 + ε)` (`r` without `divide_by_std`), or 0.

    Returns:
        [n] advantages; for n > 1 they sum to 0 up to rounding.

    Raises:
        ValueError: no reward, one that is not finite, or two whose difference is not.

    Source: DAPO, eq. 9; verl `compute_grpo_outcome_advantage` for ε, the sample deviation and the group of one;
    without the deviation: Dr. GRPO.
    """
    if not rewards or not all(map(math.isfinite, rewards)) or not math.isfinite(max(rewards) - min(rewards)):
        raise ValueError(f"rewards of a group must be finite and at least one, not {list(rewards)}")
    if len(rewards) == 1:
        reward = rewards[0] if singleton == "reward" else 0.0
        return [reward / (1.0 + EPSILON) if divide_by_std else reward]
    distances = [r - rewards[0] for r in rewards]
    if not any(distances):
        return [0.0] * len(rewards)
    mean = math.fsum(distances) / len(rewards)
    centred = [d - mean for d in distances]
    if not divide_by_std:
        return centred
    # hypot squares nothing that could overflow or vanish.
    std = math.hypot(*centred) / math.sqrt(len(rewards) - 1)
    return [c / (std + EPSILON) for c in centred]
