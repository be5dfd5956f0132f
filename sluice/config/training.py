"""What a training step does with its batch, and what it leaves behind."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.config.section import Section

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]


class AlgorithmConfig(Section):
    norm_adv_by_std: bool = Field(True, description="Divide advantages by the group's sample standard deviation.")
    singleton_advantage: Literal["reward", "zero"] | None = Field(
        None, description="Advantage of a group of one: its reward, or none; to be chosen with rollout.group_size = 1."
    )
    loss_mode: Literal["vanilla", "gspo", "cispo"] = Field(
        "vanilla", description="Policy loss: DAPO's token ratios, GSPO's sequence ratios, or CISPO's clipped weights."
    )
    clip_ratio_low: float = Field(0.2, ge=0, description="ε_low of the clip range; 1 or more is no lower bound.")
    clip_ratio_high: float = Field(0.28, ge=0, description="ε_high of the clip range (clip-higher).")
    clip_ratio_c: float = Field(10.0, gt=1, description="Dual-clip constant for negative advantages, of `vanilla`.")
    loss_agg_mode: Literal[
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "group-mean-token-mean",
    ] = Field("token-mean", description="How token losses become one number; counts span the whole mini-batch.")
    loss_scale_factor: float | None = Field(
        None, gt=0, description="Divisor of `seq-mean-token-sum-norm`, in tokens; unset: rollout.max_response_length."
    )
    overlong_filtering: bool = Field(
        False,
        description="Train nothing on responses cut at max_response_length; their groups still compare with them.",
    )
    entropy_coeff: float = Field(0.0, ge=0, description="Entropy bonus: this times the entropy is taken off the loss.")
    kl_loss_coef: float = Field(
        0.0,
        ge=0,
        description="Weight of the KL term to the initial model; 0: no term, and no reference model in memory.",
    )
    kl_loss_type: Literal["k1", "k2", "k3"] = Field(
        "k3", description="Estimate of the KL term; as a loss, `k1` has no effect on average."
    )
    proximal: Literal["recompute", "bypass"] = Field(
        "recompute", description="Anchor of the ratio: recomputed with the current weights, or the behaviour policy."
    )
    importance_weight_cap: float | None = Field(
        2.0, gt=0, description="Cap of the importance weight behaviour → proximal; unset: no correction."
    )
    importance_weight_level: Literal["token", "sequence"] = Field(
        "token", description="A weight for each token, or for each response: the product of its tokens'."
    )
    importance_weight_mode: Literal["truncate", "mask"] = Field(
        "truncate", description="Weights above the cap are cut; or those outside floor and cap become 0 (IcePop)."
    )
    importance_weight_floor: float = Field(
        0.0, ge=0, description="Lowest importance weight that `mask` lets through; 0: no lower bound."
    )
    rejection: (
        Literal[
            "token_k1",
            "token_k2",
            "token_k3",
            "seq_sum_k1",
            "seq_sum_k2",
            "seq_sum_k3",
            "seq_mean_k1",
            "seq_mean_k2",
            "seq_mean_k3",
            "seq_max_k2",
            "seq_max_k3",
        ]
        | None
    ) = Field(None, description="Leave tokens or responses out of the loss by how far both policies are apart there.")
    rejection_upper: float | None = Field(
        None, gt=0, description="Largest weight (`k1`) or estimate in nats (`k2`, `k3`) that `rejection` lets through."
    )
    rejection_lower: float | None = Field(
        None, gt=0, description="Lowest weight that a `k1` rejection lets through; unset: 1 / rejection_upper."
    )

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        if self.loss_mode == "gspo" and self.loss_agg_mode != "seq-mean-token-mean":
            raise ValueError(
                f"loss_agg_mode = {self.loss_agg_mode!r} does not go with loss_mode = 'gspo', whose objective is a "
                f"mean over responses: set loss_agg_mode = 'seq-mean-token-mean'"
            )
        if self.loss_scale_factor is not None and self.loss_agg_mode != "seq-mean-token-sum-norm":
            raise ValueError(
                f"loss_scale_factor = {self.loss_scale_factor:g} is used by loss_agg_mode = 'seq-mean-token-sum-norm' "
                f"alone, not by {self.loss_agg_mode!r}"
            )
        return self

    @model_validator(mode="after")
    def _check_correction(self) -> Self:
        cap, floor = self.importance_weight_cap, self.importance_weight_floor
        if floor and self.importance_weight_mode != "mask":
            raise ValueError(
                f"importance_weight_floor = {floor:g} is used by importance_weight_mode = 'mask' alone; "
                f"set that, or leave the floor at 0"
            )
        if cap is not None and floor >= cap:
            raise ValueError(f"importance_weight_floor = {floor:g} must be below importance_weight_cap = {cap:g}")
        if cap is None and (self.importance_weight_mode, self.importance_weight_level) != ("truncate", "token"):
            raise ValueError(
                "importance_weight_mode and importance_weight_level need an importance_weight_cap, which is unset"
            )
        return self

    @model_validator(mode="after")
    def _check_rejection(self) -> Self:
        upper, lower = self.rejection_upper, self.rejection_lower
        if (self.rejection is None) != (upper is None):
            raise ValueError(
                f"rejection = {self.rejection!r} and rejection_upper = {upper} go together: set both or none"
            )
        if lower is not None and not (self.rejection or "").endswith("k1"):
            raise ValueError(f"rejection_lower = {lower:g} is used by k1 rejections alone, not by {self.rejection!r}")
        if upper is not None and (self.rejection or "").endswith("k1") and self.rejection_bounds[0] >= upper:
            raise ValueError(
                f"rejection_upper = {upper:g} must be above rejection_lower = {self.rejection_bounds[0]:g}"
                f"{'' if lower else ' (1 / rejection_upper, unless set)'}"
            )
        return self

    @property
    def rejection_bounds(self) -> tuple[float, float]:
        """(lower, upper); the lower one is of k1 alone. Only with `rejection`."""
        upper = self.rejection_upper or math.inf
        return self.rejection_lower or 1.0 / upper, upper


class OptimConfig(Section):
    lr: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rate after the warm-up: as it is, or falling to min_lr_ratio by the end."
    )
    lr_warmup_steps: int = Field(0, ge=0, description="Length of the linear warm-up, in units of lr_unit.")
    lr_unit: Literal["step", "update"] = Field(
        "step", description="What moves the learning rate: training steps that made an update, or optimizer updates."
    )
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="Where `linear` and `cosine` end at trainer.total_steps, as a share of lr."
    )
    weight_decay: float = Field(0.1, ge=0, description="Decoupled weight decay.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's moment decay rates.")
    eps: float = Field(1e-8, gt=0, description="AdamW's denominator offset.")
    grad_clip: float = Field(1.0, gt=0, description="Largest global gradient norm.")

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas = {list(self.betas)} must each be at least 0 and below 1")
        return self


class LoraConfig(Section):
    rank: int = Field(
        0, ge=0, description="Rank of the adapters, which are trained instead of the weights; 0: no adapters."
    )
    alpha: int = Field(16, ge=1, description="Adapters are scaled by alpha / rank; they never have dropout.")
    target_modules: tuple[ModuleName, ...] | None = Field(
        None,
        min_length=1,
        description="Linear layers that get adapters, by the ends of their names; unset: all of them.",
    )


class TrainerConfig(Section):
    total_steps: int = Field(ge=1, description="Training steps of the run.")
    prompts_per_step: int = Field(512, ge=1, description="B: kept groups that one training step consumes.")
    updates_per_step: int = Field(
        1,
        ge=1,
        description="Mini-batches of one pass over a batch, each of B / updates_per_step prompts and one update.",
    )
    epochs_per_step: int = Field(1, ge=1, description="Passes over a batch in one training step.")
    max_tokens_per_micro_batch: int = Field(
        16384, ge=1, description="Token budget of one packed forward and backward pass, on each rank."
    )
    sequence_parallel: int = Field(
        1,
        ge=1,
        description="Ranks that share each micro-batch, every one with its part of all rows (Ulysses). It divides the "
        "number of ranks; a row may be as long as all their token budgets together.",
    )
    prefix_sharing: bool = Field(
        True,
        description="Compute a group's shared prompt once, in rows under a block mask (exact). Not with "
        "`flash_attention_2`.",
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        3, description="DeepSpeed ZeRO stage: 0 shards nothing, 1 the optimizer, 2 gradients too, 3 parameters too."
    )
    offload_optimizer: bool = Field(False, description="Keep optimizer states in host memory.")
    offload_parameters: bool = Field(False, description="Keep parameters in host memory.")
    offload_reference: bool = Field(
        False,
        description="Keep the reference model of the KL term in host memory; it is sharded over all ranks anyway.",
    )
    last_batch: Literal["train", "drop"] = Field(
        "train", description="What happens to the remainder when the data is exhausted."
    )
    target_reward: float | None = Field(
        None, description="Succeed early once the mean reward over all sampled groups of the last 5 steps reaches this."
    )
    seed: int = Field(0, ge=0, description="Seed of data order, sampling and initialisation.")

    @model_validator(mode="after")
    def _check_offload(self) -> Self:
        for field, least in (("offload_optimizer", 1), ("offload_parameters", 3)):
            if getattr(self, field) and self.zero_stage < least:
                raise ValueError(
                    f"trainer.{field} = true needs trainer.zero_stage = {least} or more, which shards it, "
                    f"not {self.zero_stage}"
                )
        return self


class CheckpointConfig(Section):
    interval: int = Field(10, ge=1, description="Training steps between checkpoints; the last step always has one.")
    keep: int = Field(2, ge=2, description="Newest checkpoints kept on disk.")
    keep_every: int | None = Field(
        None, ge=1, description="Also keep the checkpoint of every so many steps, a multiple of interval; unset: none."
    )

    keep_best: str | None = Field(
        None,
        description="Also keep the checkpoint with the highest value of a metric of an evaluation set, such as "
        "`aime-2024/avg@32`; its weights stay too, for `sluice export --best`.",
    )

    @model_validator(mode="after")
    def _check_multiple(self) -> Self:
        if self.keep_every is not None and self.keep_every % self.interval:
            raise ValueError(
                f"keep_every = {self.keep_every} must be a multiple of interval = {self.interval}, the steps that have "
                f"a checkpoint"
            )
        return self


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
    run_seconds: float | None = Field(
        None,
        gt=0,
        description="Longest time from creation to the end, pauses included; then the run is checkpointed and fails.",
    )


class RetryConfig(Section):
    max_trainer_restarts: int | None = Field(
        16, ge=0, description="Restarts of the trainer with no new checkpoint in between, after which the run fails."
    )
    restart_interval_seconds: float = Field(
        0, ge=0, description="Least time between two starts of the trainer; one that comes sooner waits for the rest."
    )
