"""The form in which an evaluation's numbers are shown and stored."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from sluice.views import View


class MetricView(View):
    """Mean of a metric over problems, with its 95 % interval."""

    value: float
    low: float
    high: float
    problems: int = Field(description="Problems with enough judged responses, which the mean is over.")


class SourceView(View):
    """The problems of one data source, or all of them."""

    data_source: str
    problems: int
    samples: int = Field(description="Responses, judged or not.")
    failed: dict[str, int] = Field(
        default_factory=dict,
        description="Responses whose check failed, by kind: in no metric, neither right nor wrong.",
    )
    avg_if_failed: tuple[float, float] | None = Field(
        None, description="What avg@k would be were every failed check wrong, or right; absent when none failed."
    )
    without_answer: int = Field(0, description="Judged responses in which the verifier found no answer.")
    truncated: int = Field(0, description="Responses that ended at the limit of tokens.")
    tokens_mean: float | None = None
    metrics: dict[str, MetricView] = Field(
        default_factory=dict, description="avg@k, pass@k, cons@k and best@k by name; a metric that cannot be is absent."
    )


class EvaluationView(View):
    """One evaluation of one model."""

    model: str
    weights: str = Field(description="What identifies the weights.")
    settings: dict[str, Any]
    rows_read: int
    duplicates: int = Field(description="Rows that were exact copies of a problem, which counts once.")
    all: SourceView
    sources: tuple[SourceView, ...]


class RunEvaluationView(View):
    """An evaluation inside a run."""

    number: int = Field(description="Training steps in the evaluated policy version; each number has one evaluation.")
    version: str = Field(description="The policy version that every response was sampled from, e.g. v10.1.")
    state: Literal["running", "finished", "incomplete", "skipped"] = "running"
    reason: str = Field("", description="What is missing and why, or why it was never begun; empty when finished.")
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    prompts: int = Field(0, description="Prompts of the evaluation; each asks for some responses to one problem.")
    prompts_done: int | None = Field(None, description="Of them, those that are answered; only while it is running.")
    responses: int = Field(0, description="Responses of the whole evaluation.")
    sets: dict[str, EvaluationView] = Field(
        default_factory=dict, description="Results by evaluation set, as `summary.json` has them."
    )

    @property
    def scores(self) -> dict[str, float]:
        """The metrics over all problems of each set by SET/KIND@K."""
        return {
            f"{name}/{metric}": found.value
            for name, view in self.sets.items()
            for metric, found in view.all.metrics.items()
        }

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each of `scores`."""
        return {
            f"{name}/{metric}": (found.low, found.high)
            for name, view in self.sets.items()
            for metric, found in view.all.metrics.items()
        }

    @property
    def main_scores(self) -> dict[str, float]:
        """Of `scores`, those over all responses to a problem: avg@k, pass@k, cons@k and best@k with the largest k."""
        wanted = {name: f"@{view.settings['samples']}" for name, view in self.sets.items()}
        return {key: value for key, value in self.scores.items() if key.endswith(wanted[key.split("/")[0]])}


def best_of(views: Iterable[RunEvaluationView], metric: str) -> RunEvaluationView | None:
    """The finished evaluation with the highest value of `metric`, SET/KIND@K; of equal ones the earliest.

    Incomplete ones are left out: what they have is of other problems, or of fewer responses. So is that of v0, the
    model that the run began as: it has no checkpoint.
    """
    whole = [view for view in views if view.number > 0 and view.state == "finished" and metric in view.scores]
    return max(whole, key=lambda view: (view.scores[metric], -view.number), default=None)
