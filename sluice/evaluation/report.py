"""From judged responses to numbers: pure, so that a run's evaluations are counted by the same lines."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from sluice.algorithms.evaluation import (
    RIGHT_ABOVE,
    Answer,
    NothingToVoteByError,
    avg_at_k,
    best_at_k,
    cons_at_k,
    interval,
    pass_at_k,
    sizes,
)
from sluice.evaluation.samples import Sample
from sluice.evaluation_views import MetricView, SourceView
from sluice.types import NO_ANSWER, Verdict, VerdictKind

ALL = "all"


def summarize(samples: Iterable[Sample], wanted: int) -> tuple[SourceView, tuple[SourceView, ...]]:
    """All problems together, and each data source alone, sorted by name.

    Args:
        samples: of every problem at least one; in any order.
        wanted: responses that each problem should have: the k of avg@k, and the largest k of the others.
    """
    by_source: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_source[sample.data_source].append(sample)
    every = [sample for of_source in by_source.values() for sample in of_source]
    return _source(ALL, every, wanted), tuple(_source(name, by_source[name], wanted) for name in sorted(by_source))


def _source(name: str, samples: Sequence[Sample], wanted: int) -> SourceView:
    problems: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        problems[sample.problem].append(sample)
    judged = [[_answer(s.verdict) for s in of_problem if _scored(s)] for of_problem in problems.values()]
    return SourceView(
        data_source=name,
        problems=len(problems),
        samples=len(samples),
        failed=Counter(s.verdict.kind.value for s in samples if not _scored(s)),
        avg_if_failed=_bounds(list(problems.values())),
        without_answer=sum(_scored(s) and s.verdict.extracted == NO_ANSWER for s in samples),
        truncated=sum(s.finish_reason == "length" for s in samples),
        tokens_mean=sum(s.tokens for s in samples) / len(samples) if samples else None,
        metrics=_metrics(judged, wanted),
    )


def _scored(sample: Sample) -> bool:
    return sample.verdict.kind is VerdictKind.SCORED


def _answer(verdict: Verdict) -> Answer:
    text = None if verdict.extracted in ("", NO_ANSWER) else verdict.extracted
    return Answer(verdict.acc or 0.0, verdict.score or 0.0, text)


def _metrics(judged: Sequence[Sequence[Answer]], wanted: int) -> dict[str, MetricView]:
    """Every metric that at least one problem has; a problem with fewer than k judged responses is not in those of k."""
    found = {f"avg@{wanted}": _mean([avg_at_k([a.acc for a in answers]) for answers in judged if answers])}
    for k in sizes(wanted):
        enough = [answers for answers in judged if len(answers) >= k]
        found[f"pass@{k}"] = _mean([pass_at_k(len(a), _right(a), k) for a in enough])
        found[f"best@{k}"] = _mean([best_at_k([one.score for one in a], k) for a in enough])
        found[f"cons@{k}"] = _mean(_votes(enough, k))
    return {name: metric for name, metric in found.items() if metric is not None}


def _right(answers: Sequence[Answer]) -> int:
    return sum(answer.acc > RIGHT_ABOVE for answer in answers)


def _votes(judged: Sequence[Sequence[Answer]], k: int) -> list[float]:
    """cons@k of each problem; none at all where a verifier names no answers to vote by.

    Leaving out only the problems that show it would leave out right responses.
    """
    try:
        return [cons_at_k(answers, k) for answers in judged]
    except NothingToVoteByError:
        return []


def _mean(values: Sequence[float]) -> MetricView | None:
    if not values:
        return None
    low, high = interval(values)
    return MetricView(value=math.fsum(values) / len(values), low=low, high=high, problems=len(values))


def _bounds(problems: Sequence[Sequence[Sample]]) -> tuple[float, float] | None:
    if all(_scored(sample) for of_problem in problems for sample in of_problem):
        return None

    def avg(failed_as: float) -> float:
        def acc(sample: Sample) -> float:
            return (sample.verdict.acc or 0.0) if _scored(sample) else failed_as

        return math.fsum(avg_at_k([acc(s) for s in of_problem]) for of_problem in problems) / len(problems)

    return avg(0.0), avg(1.0)
