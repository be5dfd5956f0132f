"""What a training step does with its batch, and what it leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice.config.section import Section


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
