"""What an evaluation asks of a model: the problems, how they are put, how responses are sampled and judged."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import Field, ValidationError

from sluice.config import EvaluationSet, RunSpec, parse_run_spec
from sluice.config.section import Section
from sluice.config.source import DataConfig
from sluice.errors import ConfigError
from sluice.faults import in_plain_words

FORMAT = 1
"""Of the files in an evaluation's folder."""


class EvaluationSettings(Section):
    """The paper's validation by default: 32 responses at temperature 1.0 and top-p 0.7."""

    data: DataConfig
    samples: int = Field(32, ge=1, le=1024, description="Responses to each problem: the k of avg@k.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(0.7, gt=0, le=1, description="Nucleus mass.")
    max_tokens: int = Field(2048, ge=1, description="Most tokens of a response.")
    stop_texts: tuple[str, ...] = Field((), description="Stop after any token whose text contains one of these.")
    verifier: str | None = Field(None, description="Verifier of every problem; unset: its data source chooses.")
    seed: int = Field(0, ge=0, description="Names the random numbers, for engines that honour seeds.")
    limit: int | None = Field(None, ge=1, description="Evaluate the first so many problems only.")

    def loader_spec(self, model: str) -> RunSpec:
        """The run whose prompts would be these problems: what `sluice.data` reads its settings from."""
        room = self.data.max_prompt_length + self.max_tokens
        return parse_run_spec(
            {
                "model": {"path": model},
                "data": self.data.model_dump(),
                "rollout": {"max_response_length": self.max_tokens, "stop_texts": self.stop_texts},
                "reward": {"verifier": self.verifier},
                "trainer": {"total_steps": 1, "prompts_per_step": 1, "max_tokens_per_micro_batch": room},
            }
        )

    def identity(self, weights: str, fingerprint: str) -> dict[str, Any]:
        """All that decides what a sample is, flat; the files' names do not, the prompts' fingerprint does."""
        chosen = self.model_dump(mode="json", exclude={"data"})
        how = self.data.model_dump(mode="json", include={"prompt_format", "prompt_style", "row_format"})
        return {"format": FORMAT, "weights": weights, "problems": fingerprint, **chosen, **how}


def settings_of(spec: RunSpec, chosen: EvaluationSet) -> EvaluationSettings:
    """What a run asks of its policy on one of its evaluation sets."""
    asked = spec.evaluation
    return EvaluationSettings(
        data=DataConfig(
            train_files=chosen.files,
            row_format=chosen.row_format,
            map_keys=chosen.map_keys,
            prompt_style=chosen.prompt_style,
            prompt_format=spec.data.prompt_format,
            max_prompt_length=spec.data.max_prompt_length,
            overlong_prompts="error",
        ),
        samples=asked.samples,
        temperature=asked.temperature,
        top_p=asked.top_p,
        max_tokens=asked.max_tokens or spec.rollout.max_response_length,
        stop_texts=spec.rollout.stop_texts,
        verifier=chosen.verifier or spec.reward.verifier,
        seed=asked.seed,
        limit=chosen.limit,
    )


def read_settings(fields: dict[str, Any]) -> EvaluationSettings:
    """Validate settings that came as flags.

    Raises:
        ConfigError: one line that names the flag at fault.
    """
    try:
        return EvaluationSettings.model_validate(fields)
    except ValidationError as error:
        raise ConfigError("; ".join(_fault(e) for e in error.errors(include_url=False))) from None


def sample_seed(seed: int, problem: int, sample: int) -> int:
    """Seed of one response: the same whichever engine makes it, and together with whichever others; below 2³¹."""
    digest = hashlib.blake2b(f"{seed}/{problem}/{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def _fault(error: Any) -> str:
    place = [str(part) for part in error["loc"]]
    field = place[-1] if place and not place[-1].isdigit() else ".".join(place)
    return f"--{field.replace('_', '-')} = {error['input']!r}: {in_plain_words(error)}"
