"""A run's algorithm section in the terms of `sluice.algorithms`."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.algorithms.aggregation import Mode
from sluice.algorithms.losses import ClipRange, KlType, LossMode, RejectionRule, WeightRule
from sluice.config import RunSpec


@dataclass(frozen=True, slots=True)
class LossRules:
    """How the tokens of a mini-batch become a loss."""

    mode: LossMode
    clip: ClipRange
    aggregation: Mode
    scale_factor: float
    recompute: bool
    """The proximal policy is the trainer's before the first update of a step; else it is the behaviour policy."""
    weights: WeightRule | None
    """None: every importance weight is 1."""
    rejection: RejectionRule | None
    entropy_coeff: float
    kl_coef: float
    kl_type: KlType

    @classmethod
    def of(cls, spec: RunSpec) -> LossRules:
        a = spec.algorithm
        recompute = a.proximal == "recompute"
        weights = None
        if recompute and a.importance_weight_cap is not None:
            masked = a.importance_weight_mode == "mask"
            weights = WeightRule(a.importance_weight_level, a.importance_weight_cap, masked, a.importance_weight_floor)
        rejection = None
        if a.rejection is not None:
            lower, upper = a.rejection_bounds
            rejection = RejectionRule(a.rejection, upper, lower)
        return cls(
            mode=a.loss_mode,
            clip=ClipRange(a.clip_ratio_low, a.clip_ratio_high, a.clip_ratio_c),
            aggregation=a.loss_agg_mode,
            scale_factor=a.loss_scale_factor or spec.rollout.max_response_length,
            recompute=recompute,
            weights=weights,
            rejection=rejection,
            entropy_coeff=a.entropy_coeff,
            kl_coef=a.kl_loss_coef,
            kl_type=a.kl_loss_type,
        )
