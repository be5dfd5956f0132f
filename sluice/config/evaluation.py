"""What is evaluated while a run trains: on which problems, how often, with how many responses, by how many workers."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, model_validator

from sluice.config.section import Section
from sluice.config.source import MappedKey, PromptStyle, RowFormat

METRIC = re.compile(r"(?P<set>[a-z0-9][a-z0-9_-]*)/(?P<metric>(?P<kind>avg|pass|cons|best)@(?P<k>[1-9][0-9]*))")
"""A metric of an evaluation set, as `checkpoint.keep_best` names it."""
LARGEST_PART = 32
"""Largest k below `samples` for which there are metrics; `sluice.algorithms.evaluation` has the same."""


class EvaluationSet(Section):
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$", description="What the set is called in results, metrics and files."
    )
    files: tuple[str, ...] = Field(min_length=1, description="Its problems, in the forms that data.train_files takes.")
    row_format: RowFormat = Field("dapo", description="Columns of the files, as in [data].")
    map_keys: dict[MappedKey, str] = Field({}, description="Other columns, as in [data].")
    prompt_style: PromptStyle | None = Field(None, description="Words put around a plain prompt, as in [data].")
    verifier: str | None = Field(
        None, description="Verifier of every problem; unset: reward.verifier, or each row's data_source."
    )
    limit: int | None = Field(None, ge=1, description="Evaluate the first so many problems only.")


class EvaluationConfig(Section):
    sets: tuple[EvaluationSet, ...] = Field((), description="What to evaluate on; without a set nothing is evaluated.")
    before_training: bool = Field(True, description="Evaluate the run's first version: the initial model.")
    every_steps: int | None = Field(
        None, ge=1, description="Training steps between evaluations; unset: none. The last step always has one."
    )
    samples: int = Field(32, ge=1, le=1024, description="Responses to each problem: the k of avg@k.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of evaluations; 0 is greedy.")
    top_p: float = Field(0.7, gt=0, le=1, description="Nucleus mass of evaluations.")
    max_tokens: int | None = Field(
        None, ge=1, description="Most tokens of a response; unset: rollout.max_response_length."
    )
    seed: int = Field(0, ge=0, description="Names the random numbers, for engines that honour seeds.")
    max_servers: int = Field(
        1, ge=1, description="Most rollout workers that evaluate at a time; meanwhile they make no training rollouts."
    )
    deadline_seconds: float = Field(
        3600, gt=0, description="Longest time for one evaluation; then it is reported with what there is."
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [chosen.name for chosen in self.sets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two evaluation sets are called {twice[0]!r}; give each a name of its own")
        return self

    def due(self, number: int, first: int) -> bool:
        """Whether policy version `number` of a run whose first is `first` is evaluated even if it is not the last."""
        if number == first:
            return self.before_training
        return self.every_steps is not None and number % self.every_steps == 0

    def why_unknown(self, metric: str) -> str:
        """Why `metric`, written SET/KIND@K, is none of these evaluations; "" if it is one."""
        names = ", ".join(chosen.name for chosen in self.sets) or "none"
        match = METRIC.fullmatch(metric)
        if match is None:
            return "must be SET/KIND@K, such as aime-2024/avg@32, with the kind avg, pass, cons or best"
        if match["set"] not in {chosen.name for chosen in self.sets}:
            return f"there is no evaluation set {match['set']!r}; evaluation.sets has {names}"
        k = int(match["k"])
        parts = {1 << bit for bit in range(LARGEST_PART.bit_length())} if match["kind"] != "avg" else set()
        known = sorted({part for part in parts if part <= self.samples} | {self.samples})
        return "" if k in known else f"evaluation.samples = {self.samples} gives {match['kind']}@k for k = {known}"
