"""The whole run file, and the rules between its sections."""

from __future__ import annotations

import hashlib
import json
from typing import Self

from pydantic import Field, model_validator

from sluice.config.evaluation import EvaluationConfig
from sluice.config.sampling import AsyncConfig, CurriculumConfig, FilterConfig, RewardConfig, RolloutConfig
from sluice.config.section import Section
from sluice.config.source import DataConfig, ModelConfig
from sluice.config.training import (
    AlgorithmConfig,
    CheckpointConfig,
    DeadlineConfig,
    LoraConfig,
    OptimConfig,
    RetryConfig,
    TrainerConfig,
    WeightsConfig,
)


class RunSpec(Section):
    """A whole run. `config_hash` identifies it; services refuse to join a run with another hash."""

    name: str = Field("run", pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", description="Name of the run, part of its id.")
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig
    filter: FilterConfig = FilterConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    asynchrony: AsyncConfig = AsyncConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    lora: LoraConfig = LoraConfig()
    trainer: TrainerConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    weights: WeightsConfig = WeightsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    retry: RetryConfig = RetryConfig()

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
        if self.micro_batch_tokens < row:
            shared = self.trainer.sequence_parallel
            times = f" × trainer.sequence_parallel = {shared}" if shared > 1 else ""
            raise ValueError(
                f"trainer.max_tokens_per_micro_batch = {self.trainer.max_tokens_per_micro_batch}{times} cannot hold "
                f"one row of data.max_prompt_length + rollout.max_response_length = {row} tokens"
            )
        return self

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        attention, shared = self.model.attention, self.trainer.sequence_parallel
        if attention == "flash_attention_2" and self.trainer.prefix_sharing:
            raise ValueError(
                "model.attention = 'flash_attention_2' knows row borders but no masks, which trainer.prefix_sharing = "
                "true needs; set trainer.prefix_sharing = false, or model.attention = 'sdpa'"
            )
        if attention == "eager" and shared > 1:
            raise ValueError(
                f"trainer.sequence_parallel = {shared} needs model.attention = 'sdpa' or 'flash_attention_2', "
                f"not 'eager', which is the model's own"
            )
        return self

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        if self.trainer.zero_stage == 0 and self.model.trainer_dtype != "float32":
            raise ValueError(
                f"trainer.zero_stage = 0 with model.trainer_dtype = {self.model.trainer_dtype!r} would sum gradients "
                f"in that precision: set trainer.zero_stage = 1 or more, or model.trainer_dtype = 'float32'"
            )
        return self

    @model_validator(mode="after")
    def _check_singletons(self) -> Self:
        chosen = self.algorithm.singleton_advantage
        if (self.rollout.group_size == 1) != (chosen is not None):
            raise ValueError(
                f"rollout.group_size = {self.rollout.group_size} and algorithm.singleton_advantage = {chosen!r} do not "
                f"go together: a group of one has nothing to compare with, so choose 'reward' or 'zero' for it; "
                f"leave it unset for larger groups"
            )
        return self

    @model_validator(mode="after")
    def _check_best(self) -> Self:
        metric, every = self.checkpoint.keep_best, self.evaluation.every_steps
        if metric is None:
            return self
        if why := self.evaluation.why_unknown(metric):
            raise ValueError(f"checkpoint.keep_best = {metric!r}: {why}")
        if every is None or every % self.checkpoint.interval:
            raise ValueError(
                f"checkpoint.keep_best = {metric!r} needs a checkpoint of each evaluated step: "
                f"evaluation.every_steps = {'unset' if every is None else every} must be a multiple of "
                f"checkpoint.interval = {self.checkpoint.interval}"
            )
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        steps, warmup = self.schedule_length, self.optim.lr_warmup_steps
        if self.optim.lr_scheduler_type != "constant" and warmup >= steps:
            raise ValueError(
                f"optim.lr_warmup_steps = {warmup} leaves nothing of the run's {steps} {self.optim.lr_unit}s for "
                f"optim.lr_scheduler_type = {self.optim.lr_scheduler_type!r}"
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
    def micro_batch_tokens(self) -> int:
        """Token budget of one micro-batch, over all ranks that share it."""
        return self.trainer.max_tokens_per_micro_batch * self.trainer.sequence_parallel

    @property
    def schedule_length(self) -> int:
        """Positions of the learning rate in the whole run, in `optim.lr_unit`."""
        updates = self.trainer.updates_per_step * self.trainer.epochs_per_step
        return self.trainer.total_steps * (updates if self.optim.lr_unit == "update" else 1)

    @property
    def canonical_json(self) -> str:
        """The spec with all defaults filled in, keys sorted: what the ledger stores."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @property
    def config_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of `canonical_json`."""
        return hashlib.sha256(self.canonical_json.encode()).hexdigest()[:16]
