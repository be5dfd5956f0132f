"""The form in which an evaluation's numbers are shown and stored."""

from __future__ import annotations

from typing import Any

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
