"""How groups come about: rollouts, verdicts, dynamic sampling, staleness."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice.config.section import Section


class RolloutConfig(Section):
    group_size: int = Field(16, ge=1, description="Rollouts sampled for each issued prompt.")
    max_response_length: int = Field(ge=1, description="Most response tokens of a rollout.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of training rollouts.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus mass; below 1 the behaviour log-probs are not the policy's."
    )
    top_k: int = Field(-1, ge=-1, description="Candidates kept when sampling; -1 keeps all.")
    stop_texts: tuple[str, ...] = Field(
        (), description="Stop after any token whose text contains one of these; the model's end token always stops."
    )
    max_attempts: int = Field(
        4, ge=1, description="Attempts in which the engine died or refused before a prompt ends as a failed group."
    )


class FilterConfig(Section):
    enable: bool = Field(True, description="Dynamic sampling: drop groups whose outcomes are all equal.")
    metric: Literal["acc", "score", "reward"] = Field(
        "acc", description="What is compared; `reward` includes length punishment and needs allow_shaped_metric."
    )
    allow_shaped_metric: bool = Field(
        False, description="Filter on the shaped reward although it lets all-wrong groups of different lengths through."
    )
    mode: Literal["streaming", "rounds"] = Field(
        "streaming", description="`streaming` refills dropped groups one for one; `rounds` is the released recipe."
    )
    gen_batch_size: int | None = Field(
        None,
        ge=1,
        description="Prompts of a generation batch in `rounds`; the unit of max_generation_batches otherwise.",
    )
    max_generation_batches: int | None = Field(
        None, ge=1, description="Generation batches for one training step after which the run pauses and says why."
    )


class CurriculumConfig(Section):
    skip_all_correct_after: int | None = Field(
        None,
        ge=1,
        description="Skip prompts whose last so many groups were all correct; they return by chance. Unset: off.",
    )
    skip_all_wrong_after: int | None = Field(
        None,
        ge=1,
        description="Skip prompts whose last so many groups were all wrong; they return by chance. Unset: off.",
    )
    return_probability: float = Field(
        0.1,
        ge=0.01,
        le=1,
        description="Chance that such a prompt is issued all the same, at each of its turns in the data order.",
    )

    @property
    def skips(self) -> bool:
        """Whether any prompt may ever be skipped."""
        return self.skip_all_correct_after is not None or self.skip_all_wrong_after is not None


class AsyncConfig(Section):
    max_staleness: int = Field(
        1, ge=0, description="η: most policy versions between a rollout's oldest token and the step that trains it."
    )
    overissue: int = Field(
        0, ge=0, description="Extra prompts in flight that may shorten the tail of η = 0, at the price of surplus."
    )
    stragglers: Literal["wait", "drop"] = Field(
        "wait", description="Wait for old groups in flight, or abandon those that break feasibility and count them."
    )
    straggler_alarm_seconds: float = Field(
        600, gt=0, description="A group in flight for longer than this raises an alarm that names it."
    )


class RewardConfig(Section):
    verifier: str | None = Field(
        None,
        description="Verifier for every row, or a weighted sum such as `math+0.2*style`, whose first one gives `acc`; "
        "unset: each row's data_source chooses.",
    )
    check_truths: bool = Field(
        True,
        description="Refuse the run when a verifier cannot judge by a row's ground truth; needs a coordinator that "
        "knows the reward service.",
    )
    on_failure: Literal["drop_group", "count_wrong"] = Field(
        "drop_group",
        description="A rollout whose check failed (timeout, error): its whole group is dropped and counted, or the "
        "rollout counts as wrong with failure_score.",
    )
    failure_score: float = Field(
        0.0, allow_inf_nan=False, description="Score of a failed check under `count_wrong`; -1 suits `math_dapo`."
    )
    overlong_buffer: int = Field(
        0, ge=0, description="Tokens before max_response_length in which the punishment grows from 0; 0 turns it off."
    )
    overlong_penalty_factor: float = Field(1.0, ge=0, description="Punishment at and beyond max_response_length.")
    deadline_seconds: float = Field(
        120, gt=0, description="Longest wait for the verdicts of one group, retries included."
    )
