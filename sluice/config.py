"""The run file: what to learn. One TOML, validated here, immutable afterwards.

Where things are comes from the environment, never from here. Every field has a sentence; `docs/configuration.md` is
generated from this file. Unknown keys are refused. The names stay close to what verl users know; `docs/migrating.md`
maps verl's and MindSpeed RL's names to these.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sluice.errors import ConfigError


class Section(BaseModel):
    """Base of all sections: frozen, and a key nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    path: str = Field(description="Folder of the Hugging Face checkpoint that the run starts from (policy version v0).")
    trainer_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Precision of the trainer's weights; optimizer masters are always float32."
    )
    engine_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Precision in which weights are published to the engines."
    )
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        "sdpa", description="Attention implementation of the trainer."
    )
    trust_remote_code: bool = Field(
        False, description="Run model code from the checkpoint; refused unless the deployment allows it."
    )


class DataConfig(Section):
    train_files: tuple[str, ...] = Field(
        min_length=1, description="Parquet or JSONL files in the DAPO-Math-17k schema, read in this order."
    )
    prompt_key: str = Field("prompt", description="Column with the prompt: a string, or a list of chat messages.")
    prompt_format: Literal["chat", "raw"] = Field(
        "chat", description="`chat` applies the model's chat template; `raw` gives the text to the model as it is."
    )
    max_prompt_length: int = Field(2048, ge=1, description="Longest prompt in tokens.")
    overlong_prompts: Literal["drop", "truncate_left", "error"] = Field(
        "drop", description="What happens to prompts over max_prompt_length; dropped ones are counted."
    )
    deduplicate: bool = Field(True, description="Keep one of each exact copy of a prompt, and count the rest.")
    shuffle: bool = Field(True, description="Draw each epoch in a seeded random order.")
    total_epochs: int | None = Field(
        None, ge=1, description="Passes over the data after which it is exhausted; unset: as many as total_steps needs."
    )


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
    verifier: str | None = Field(None, description="Verifier for every row; unset: each row's data_source chooses.")
    overlong_buffer: int = Field(
        0, ge=0, description="Tokens before max_response_length in which the punishment grows from 0; 0 turns it off."
    )
    overlong_penalty_factor: float = Field(1.0, ge=0, description="Punishment at and beyond max_response_length.")
    deadline_seconds: float = Field(
        120, gt=0, description="Longest wait for the verdicts of one group, retries included."
    )


class AlgorithmConfig(Section):
    norm_adv_by_std: bool = Field(True, description="Divide advantages by the group's sample standard deviation.")
    clip_ratio_low: float = Field(0.2, ge=0, lt=1, description="ε_low of the clip range.")
    clip_ratio_high: float = Field(0.28, ge=0, description="ε_high of the clip range (clip-higher).")
    clip_ratio_c: float = Field(10.0, gt=1, description="Dual-clip constant for negative advantages.")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        Field("token-mean", description="How token losses become one number; counts span the whole mini-batch.")
    )
    proximal: Literal["recompute", "bypass"] = Field(
        "recompute", description="Anchor of the ratio: recomputed with the current weights, or the behaviour policy."
    )
    importance_weight_cap: float | None = Field(
        2.0, gt=0, description="Cap of the truncated importance weight behaviour → proximal; unset: no correction."
    )


class OptimConfig(Section):
    lr: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    lr_warmup_steps: int = Field(0, ge=0, description="Linear warm-up, in training steps.")
    weight_decay: float = Field(0.1, ge=0, description="Decoupled weight decay.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's moment decay rates.")
    eps: float = Field(1e-8, gt=0, description="AdamW's denominator offset.")
    grad_clip: float = Field(1.0, gt=0, description="Largest global gradient norm.")


class TrainerConfig(Section):
    total_steps: int = Field(ge=1, description="Training steps of the run.")
    prompts_per_step: int = Field(512, ge=1, description="B: kept groups that one training step consumes.")
    updates_per_step: int = Field(1, ge=1, description="Optimizer updates (mini-batches) of one training step.")
    max_tokens_per_micro_batch: int = Field(
        16384, ge=1, description="Token budget of one packed forward and backward pass."
    )
    prefix_sharing: bool = Field(
        True, description="Compute a group's shared prompt once, in rows under a block mask (exact)."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    zero_stage: Literal[1, 2, 3] = Field(
        3, description="DeepSpeed ZeRO stage; 1 shards the optimizer alone, and keeps its float32 masters."
    )
    offload_optimizer: bool = Field(False, description="Keep optimizer states in host memory.")
    offload_parameters: bool = Field(False, description="Keep parameters in host memory.")
    last_batch: Literal["train", "drop"] = Field(
        "train", description="What happens to the remainder when the data is exhausted."
    )
    target_reward: float | None = Field(
        None, description="Succeed early once the mean reward over all sampled groups of the last 5 steps reaches this."
    )
    seed: int = Field(0, ge=0, description="Seed of data order, sampling and initialisation.")


class CheckpointConfig(Section):
    interval: int = Field(10, ge=1, description="Training steps between checkpoints; the last step always has one.")
    keep: int = Field(2, ge=2, description="Newest checkpoints kept on disk.")


class WeightsConfig(Section):
    transport: Literal["shared", "grpc"] = Field(
        "shared", description="`shared`: a folder all see; `grpc`: streamed from the trainer, nothing shared is read."
    )
    keep: int = Field(3, ge=2, description="Newest versions kept where they were published.")
    update: Literal["in_flight", "drain"] = Field(
        "in_flight", description="Load new weights under running groups (retract), or let them finish first."
    )


class DeadlineConfig(Section):
    no_progress_seconds: float = Field(
        1800, gt=0, description="Longest time without a finished group or step before the run says who it waits for."
    )
    weight_sync_seconds: float = Field(600, gt=0, description="Longest time for a worker to apply one policy version.")
    generate_seconds: float = Field(3600, gt=0, description="Longest time for the engine to finish one group.")


class RunSpec(Section):
    """A whole run. `config_hash` identifies it; services refuse to join a run with another hash."""

    name: str = Field("run", pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", description="Name of the run, part of its id.")
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig
    filter: FilterConfig = FilterConfig()
    asynchrony: AsyncConfig = AsyncConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    trainer: TrainerConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    weights: WeightsConfig = WeightsConfig()
    deadlines: DeadlineConfig = DeadlineConfig()

    @model_validator(mode="after")
    def _check_lengths_and_batches(self) -> Self:
        if self.reward.overlong_buffer >= self.rollout.max_response_length:
            raise ValueError(
                f"reward.overlong_buffer = {self.reward.overlong_buffer} must be below "
                f"rollout.max_response_length = {self.rollout.max_response_length}"
            )
        if self.trainer.prompts_per_step % self.trainer.updates_per_step:
            raise ValueError(
                f"trainer.updates_per_step = {self.trainer.updates_per_step} must divide "
                f"trainer.prompts_per_step = {self.trainer.prompts_per_step}"
            )
        row = self.data.max_prompt_length + self.rollout.max_response_length
        if self.trainer.max_tokens_per_micro_batch < row:
            raise ValueError(
                f"trainer.max_tokens_per_micro_batch = {self.trainer.max_tokens_per_micro_batch} cannot hold one row "
                f"of data.max_prompt_length + rollout.max_response_length = {row} tokens"
            )
        return self

    @model_validator(mode="after")
    def _check_overissue(self) -> Self:
        if self.asynchrony.overissue and (self.asynchrony.max_staleness or self.filter.mode == "rounds"):
            raise ValueError(
                f"asynchrony.overissue = {self.asynchrony.overissue} only shortens the tail of on-policy streaming; "
                f"set asynchrony.max_staleness = 0 and filter.mode = 'streaming', or overissue = 0"
            )
        return self

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.filter.metric == "reward" and not self.filter.allow_shaped_metric:
            raise ValueError(
                "filter.metric = 'reward' includes the length punishment and has destroyed policies; "
                "use 'acc', or set filter.allow_shaped_metric = true"
            )
        if self.filter.enable and self.rollout.group_size == 1:
            raise ValueError(
                "rollout.group_size = 1 leaves every group with equal outcomes; raise it or set filter.enable = false"
            )
        if self.filter.mode == "rounds":
            if self.asynchrony.max_staleness != 0:
                raise ValueError(
                    f"filter.mode = 'rounds' is on-policy: asynchrony.max_staleness must be 0, "
                    f"not {self.asynchrony.max_staleness}"
                )
            if (self.filter.gen_batch_size or 0) < 1:
                raise ValueError("filter.mode = 'rounds' needs filter.gen_batch_size (prompts of a generation batch)")
        return self

    @property
    def canonical_json(self) -> str:
        """The spec with all defaults filled in, keys sorted: what the ledger stores."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @property
    def config_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of `canonical_json`."""
        return hashlib.sha256(self.canonical_json.encode()).hexdigest()[:16]


def parse_run_spec(fields: dict[str, Any]) -> RunSpec:
    """Validate a run given as nested tables.

    Raises:
        ConfigError: one line that names every wrong field with its value.
    """
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise ConfigError("; ".join(_fault(e) for e in error.errors())) from None


def load_run_spec(path: Path) -> RunSpec:
    """Read a run file. Relative paths in it are relative to the working folder.

    Raises:
        ConfigError: the file is missing, is not TOML, or a field is wrong.
    """
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"run file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} is not TOML: {error}") from None
    return parse_run_spec(fields)


def _fault(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{field}: no such field; see docs/configuration.md for the list"
    if error["type"] == "missing":
        return f"{field}: is required"
    return f"{field} = {error['input']!r}: {message}" if field else message
