"""An evaluation inside a run: what workers are asked, what they answer, and what the coordinator writes down of it.

The noun is the policy version: each number is evaluated at most once, so the number names the evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sluice.types.group import FinishReason, PolicyVersion, Prompt, Verdict


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """Some responses to one problem, all to be sampled from `version` and from nothing else.

    In `prompt`, `n` counts within the evaluation, `index` is the problem's place in its set, `group_size` the number of
    responses, and `data_source` what chooses the verifier.
    """

    version: PolicyVersion
    prompt: Prompt
    seeds: tuple[int, ...]
    """One for each response."""


@dataclass(frozen=True, slots=True)
class EvaluatedResponse:
    """One response and its verdict; the text is "" where a group with it would be over the size of a message."""

    text: str
    length: int
    """In tokens."""
    finish_reason: FinishReason
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class EvaluationGroup:
    """What became of evaluation prompt `n`: its responses in order, or none and the `error` that stood in the way."""

    run_id: str
    version: PolicyVersion
    n: int
    responses: tuple[EvaluatedResponse, ...]
    worker: str
    engine: str
    generate_seconds: float
    reward_seconds: float
    error: str = ""


class EvaluationOutcome(StrEnum):
    """How an evaluation ended."""

    FINISHED = "finished"
    INCOMPLETE = "incomplete"
    """Something is missing; the reason says what and why, and the results are of what is there."""
    SKIPPED = "skipped"
    """Never begun; the reason says why."""


@dataclass(frozen=True, slots=True)
class EvaluationBegun:
    """The evaluation of `version` is going on; `prompts` prompts ask for `responses` responses in all."""

    version: PolicyVersion
    prompts: int
    responses: int
    settings_json: str
    """JSON object: for each set, all that decides what a response is."""


@dataclass(frozen=True, slots=True)
class EvaluationEnded:
    """The evaluation of `version` is settled, for good."""

    version: PolicyVersion
    outcome: EvaluationOutcome
    reason: str
    results_json: str = ""
    """JSON object: for each set an EvaluationView; empty when there is nothing to tell."""


EvaluationRecord = EvaluationBegun | EvaluationEnded
