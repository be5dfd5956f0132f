"""The second loop of a run: evaluations, beside its training and never in its way."""

from __future__ import annotations

from typing import Protocol

from sluice.types import EvaluationOutcome, PolicyVersion


class Evaluation(Protocol):
    """What the loop decides about: the evaluation that goes on, if one does, and what comes next."""

    @property
    def running(self) -> bool: ...

    async def pass_over(self) -> None:
        """Settle the versions that a newer one has overtaken while they waited: the newest that is due is evaluated."""
        ...

    def next(self) -> PolicyVersion | None:
        """The version to evaluate now, if there is one."""
        ...

    async def begin(self, version: PolicyVersion) -> None: ...

    async def look(self) -> None:
        """See how far it is."""
        ...

    def over(self) -> tuple[EvaluationOutcome, str] | None:
        """How it has ended and why, or None while it goes on."""
        ...

    async def end(self, outcome: EvaluationOutcome, reason: str) -> None: ...

    async def rest(self) -> None:
        """Until it makes sense to look again."""
        ...


async def evaluate(evaluation: Evaluation) -> None:
    """Evaluate the policy versions that are due, one at a time, for as long as the run is held.

    consumes:     policy versions (TRAINER), evaluation groups (EVAL_GROUPS)
    produces:     records (EVALUATIONS), each stored before it takes effect; prompts (EVAL_PROMPTS), files, events
    waits for:    a version that is due; the responses ("evaluation")
    unblocked by: the trainer; the workers that are reserved; evaluation.deadline_seconds
    on failure:   a refused append ends this holder (FencedError); a successor goes on with the evaluation, and offers
                  again what nobody has. Whatever else fails, it is settled as incomplete and the run goes on
    """
    while True:
        await evaluation.pass_over()
        if not evaluation.running:
            version = evaluation.next()
            if version is None:
                await evaluation.rest()
            else:
                await evaluation.begin(version)
            continue
        await evaluation.look()
        verdict = evaluation.over()
        if verdict is None:
            await evaluation.rest()
        else:
            await evaluation.end(*verdict)
