"""Which groups carry a gradient (DAPO, section 3.2): those whose outcomes are not all equal."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.config import FilterConfig
from sluice.types import DropReason, Group, GroupStatus, RolloutSummary


def drop_reason(group: Group, rule: FilterConfig) -> DropReason | None:
    """Why `group` is dropped, or None if it is kept.

    Outcomes are compared exactly (max != min): a standard deviation above zero would keep equal values that only
    rounding tells apart. A verifier failure drops the group; it is never a reward.
    """
    if group.status is GroupStatus.FAILED:
        return DropReason.FAILED
    if group.status is GroupStatus.VERIFIER_FAILED:
        return DropReason.VERIFIER_FAILED
    if not rule.enable or not equal_outcomes(group.rollouts, rule.metric):
        return None
    accs = {rollout.acc for rollout in group.rollouts}
    if accs == {1.0}:
        return DropReason.ALL_CORRECT
    return DropReason.ALL_WRONG if accs == {0.0} else DropReason.UNIFORM


def equal_outcomes(rollouts: Sequence[RolloutSummary], metric: str) -> bool:
    """Whether all rollouts have the same `metric` (`acc`, `score` or `reward`): such a group has no advantage."""
    values = [float(getattr(rollout, metric)) for rollout in rollouts]
    return max(values) == min(values)
