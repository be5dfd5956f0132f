"""What the reward service does with a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.reward import metrics
from services.reward.mixture import combine
from services.reward.routing import Routes
from sluice.types import NO_ANSWER, ScoreItem, Verdict, VerdictKind


class Judges(Protocol):
    """Whoever runs verifiers; in the service it is the pool of worker processes."""

    async def score(self, items: Sequence[tuple[str, ScoreItem]]) -> list[Verdict]: ...


async def score(items: Sequence[ScoreItem], routes: Routes, judges: Judges) -> list[Verdict]:
    """Judge a request's items; verdicts come in the order of the items.

    consumes:     ScoreItem (one Score call of a rollout worker, or a stretch of a file)
    produces:     Verdict   (one an item, always; a failure is a verdict of kind timeout or error, never a 0)
    waits for:    a lane of the pool, then the checks themselves, each under its time limit
    unblocked by: the pool; the caller's deadline cancels this call, and what has not begun is then abandoned
    on failure:   nothing is kept, so the caller may ask again, here or at another replica
    """
    routed = [(routes.find(item.data_source), item) for item in items]
    asked = [(part.verifier, item) for mixture, item in routed for part in mixture or ()]
    answers = await judges.score(asked)
    for (name, _), verdict in zip(asked, answers, strict=True):
        _count(name, verdict)
    judged = iter(answers)
    return [
        combine(mixture, [next(judged) for _ in mixture]) if mixture else _unknown(item, routes)
        for mixture, item in routed
    ]


def _count(name: str, verdict: Verdict) -> None:
    metrics.VERDICTS.labels(name, verdict.kind).inc()
    metrics.VERDICT_SECONDS.labels(name).observe(verdict.seconds)
    if verdict.kind is VerdictKind.SCORED:
        metrics.CORRECT.labels(name).inc(max(0.0, verdict.acc or 0.0))
        metrics.EXTRACTION_FAILURES.labels(name).inc(verdict.extracted == NO_ANSWER)


def _unknown(item: ScoreItem, routes: Routes) -> Verdict:
    known = ", ".join(routes.verifiers)
    metrics.VERDICTS.labels("unknown", VerdictKind.ERROR).inc()
    message = f"no verifier for data source {item.data_source!r}; registered: {known}; knob: SLUICE_REWARD_ROUTES"
    return Verdict(VerdictKind.ERROR, None, None, "", "", 0.0, message)
