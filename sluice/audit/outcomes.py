"""What the filter had to decide about a stored group, from its outcomes alone."""

from __future__ import annotations

from sluice.audit.rules import Rules
from sluice.wire.v1.rollouts_pb2 import Group

BY_OUTCOME = frozenset({"all_correct", "all_wrong", "uniform", "verifier_failed", "failed"})


def reason_to_drop(group: Group, rules: Rules) -> str | None:
    """Why the group carries no gradient, or None if it is to be kept."""
    if group.status in ("failed", "verifier_failed"):
        return group.status
    if not rules.filtering or len(_values(group, rules.metric)) > 1:
        return None
    correct = _values(group, "acc")
    if correct == {1.0}:
        return "all_correct"
    return "all_wrong" if correct == {0.0} else "uniform"


def _values(group: Group, metric: str) -> set[float]:
    if metric == "reward":
        return {rollout.score + rollout.shaping for rollout in group.rollouts}
    return {rollout.acc if metric == "acc" else rollout.score for rollout in group.rollouts}
