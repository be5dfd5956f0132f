"""The evaluations inside a run as trackers get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sluice.evaluation_views import RunEvaluationView

PREFIX = "evaluation/"
VERSION = f"{PREFIX}policy_version"
"""Whose number the results beside it are of: results come some training steps later."""
VERL_KINDS = {"avg": "mean@{}", "best": "best@{}/mean", "cons": "maj@{}/mean"}
"""verl's names of the same numbers, below `val-core/SET/acc/`; it has no unbiased pass@k."""


@dataclass(frozen=True, slots=True)
class TrackedEvaluation:
    """The results of one evaluation."""

    number: int
    """Of the evaluated policy version: training steps done, as a step's own number."""
    time: datetime
    version: str
    values: dict[str, float]


def tracked(view: RunEvaluationView, verl_names: bool) -> TrackedEvaluation | None:
    """What trackers get of an evaluation; None while it has no results."""
    if view.ended_at is None or not view.sets:
        return None
    values = {f"{PREFIX}{name}": value for name, value in view.scores.items()}
    if verl_names:
        values |= _in_verl(view.scores)
    return TrackedEvaluation(view.number, view.ended_at, view.version, values)


def _in_verl(scores: Mapping[str, float]) -> dict[str, float]:
    named = {}
    for name, value in scores.items():
        chosen, _, metric = name.partition("/")
        kind, _, k = metric.partition("@")
        if kind in VERL_KINDS:
            named[f"val-core/{chosen}/acc/{VERL_KINDS[kind].format(k)}"] = value
    return named
