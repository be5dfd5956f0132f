"""Metrics of the evaluations inside runs; part of `metrics`."""

from __future__ import annotations

from sluice.evaluation_views import RunEvaluationView
from sluice.run_series import RunSeries
from sluice.types import EvaluationOutcome, PolicyVersion


class EvaluationMetrics:
    """The newest results of each run, and how its evaluations go. A run without evaluations has none of these."""

    def __init__(self, series: RunSeries) -> None:
        self.score = series.final_gauge(
            "sluice_evaluation_score",
            "Result of the newest evaluation, over all problems of a set: avg@k, pass@k, cons@k and best@k, for the k "
            "that is all responses to a problem.",
            "set",
            "measure",
        )
        self.version = series.final_gauge(
            "sluice_evaluation_policy_version", "Number of the policy version that these results are of."
        )
        self.share = series.gauge(
            "sluice_evaluation_progress_share", "Share of the newest evaluation's prompts that are answered."
        )
        self.seconds = series.histogram("sluice_evaluation_seconds", "From the begin of an evaluation to its results.")
        self.ended = series.counter(
            "sluice_evaluations_total", "Evaluations by how they ended: finished, incomplete, skipped.", "outcome"
        )

    def begin(self, run_id: str) -> None:
        """What can be counted exists from the start."""
        self.share.labels(run=run_id).set(0)
        for outcome in EvaluationOutcome:
            self.ended.labels(run=run_id, outcome=str(outcome))

    def forget(self, run_id: str) -> None:
        """Another coordinator shows the results from now on."""
        for metric in (self.score, self.version):
            metric.remove_by_labels({"run": run_id})

    def progress(self, run_id: str, share: float) -> None:
        self.share.labels(run=run_id).set(share)

    def show(self, run_id: str, view: RunEvaluationView) -> None:
        """These are the newest results, if there are any in it."""
        if not view.sets:
            return
        self.version.labels(run=run_id).set(PolicyVersion.parse(view.version).number)
        for name, value in view.main_scores.items():
            chosen, measure = name.split("/")
            self.score.labels(run=run_id, set=chosen, measure=measure).set(value)

    def count(self, run_id: str, view: RunEvaluationView) -> None:
        """An evaluation has ended."""
        self.ended.labels(run=run_id, outcome=view.state).inc()
        if view.begun_at is not None and view.ended_at is not None:
            self.seconds.labels(run=run_id).observe((view.ended_at - view.begun_at).total_seconds())
