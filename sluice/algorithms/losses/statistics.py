"""Metrics of a training step, as sums that add up over micro-batches, updates and ranks.

A field whose name ends in `_max` or `_min` is combined as such, every other one is added. `fields` turns the sums of
all ranks into metrics, under the names of the step event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from sluice.algorithms.losses.correction import WeightRule, raw_weights
from sluice.algorithms.losses.kl import kl_estimate
from sluice.algorithms.losses.policy import LOG_RATIO_LIMIT, TokenLoss
from sluice.algorithms.losses.responses import Responses


@dataclass(frozen=True, slots=True)
class UpdateSums:
    """Over the trained tokens of all updates of a step: one entry a token and update."""

    tokens: float = 0.0
    loss: float = 0.0
    """Weighted, so this one is the loss itself, summed over updates."""
    policy_loss: float = 0.0
    """The policy term of `loss`."""
    reference_kl: float = 0.0
    entropy: float = 0.0
    probability: float = 0.0
    clipped_high: float = 0.0
    clipped_low: float = 0.0
    dual_clipped: float = 0.0
    log_ratio: float = 0.0
    log_ratio_k3: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0

    def fields(self, updates: int) -> dict[str, float]:
        """Means over tokens, and over updates for the losses."""
        tokens, updates = max(self.tokens, 1.0), max(updates, 1)
        return {
            "loss": self.loss / updates,
            "policy_loss": self.policy_loss / updates,
            "kl_loss": self.reference_kl / tokens,
            "entropy": self.entropy / tokens,
            "mean_token_probability": self.probability / tokens,
            "clip_fraction_high": self.clipped_high / tokens,
            "clip_fraction_low": self.clipped_low / tokens,
            "dual_clip_fraction": self.dual_clipped / tokens,
            "approx_kl": -self.log_ratio / tokens,
            "approx_kl_k3": self.log_ratio_k3 / tokens,
            "ratio_mean": self.ratio / tokens,
            "ratio_max": self.ratio_max,
        }


@dataclass(frozen=True, slots=True)
class GapSums:
    """Trainer against behaviour policy before the first update, over all response tokens, rejected ones included."""

    tokens: float = 0.0
    sequences: float = 0.0
    gap: float = 0.0
    """Σ |log π_trainer − log π_behaviour|."""
    gap_max: float = 0.0
    prob_gap: float = 0.0
    prob_gap_max: float = 0.0
    trainer_prob: float = 0.0
    behaviour_prob: float = 0.0
    trainer_prob_squared: float = 0.0
    behaviour_prob_squared: float = 0.0
    prob_product: float = 0.0
    kl: float = 0.0
    kl_k3: float = 0.0
    chi2: float = 0.0
    """Σ w²."""
    chi2_sequence: float = 0.0
    """Σ over responses of (Π w)²."""
    trainer_perplexity: float = 0.0
    behaviour_perplexity: float = 0.0
    log_perplexity: float = 0.0
    log_perplexity_abs: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    weight_max: float = -math.inf
    weight_min: float = math.inf
    weight_high: float = 0.0
    weight_low: float = 0.0
    rejected_tokens: float = 0.0
    rejected_sequences: float = 0.0
    """Responses with at least one rejected token."""

    def fields(self) -> dict[str, float]:
        """Means over tokens; perplexities, `chi2_sequence` and rejected sequences over responses."""
        n, m = max(self.tokens, 1.0), max(self.sequences, 1.0)
        weight = self.weight / n
        variance = max(self.weight_squared / n - weight * weight, 0.0)
        return {
            "logprob_gap_mean": self.gap / n,
            "logprob_gap_max": self.gap_max,
            "prob_gap_mean": self.prob_gap / n,
            "prob_gap_max": self.prob_gap_max,
            "prob_correlation": self._correlation(n),
            "behaviour_kl": self.kl / n,
            "behaviour_kl_k3": self.kl_k3 / n,
            "trainer_perplexity": self.trainer_perplexity / m,
            "behaviour_perplexity": self.behaviour_perplexity / m,
            "log_perplexity_gap": self.log_perplexity / m,
            "log_perplexity_gap_abs": self.log_perplexity_abs / m,
            "chi2_token": self.chi2 / n - (self.tokens > 0),
            "chi2_sequence": self.chi2_sequence / m - (self.sequences > 0),
            "importance_weight_mean": weight,
            "importance_weight_std": math.sqrt(variance),
            "importance_weight_max": self.weight_max if self.tokens else 0.0,
            "importance_weight_min": self.weight_min if self.tokens else 0.0,
            "importance_weight_fraction_high": self.weight_high / n,
            "importance_weight_fraction_low": self.weight_low / n,
            "effective_sample_size": self.weight * self.weight / (n * self.weight_squared) if self.weight else 0.0,
            "rejected_token_fraction": self.rejected_tokens / n,
            "rejected_sequence_fraction": self.rejected_sequences / m,
        }

    def _correlation(self, n: float) -> float:
        """Pearson's, of the probabilities that both policies give to the tokens."""
        p, q = self.trainer_prob / n, self.behaviour_prob / n
        spread = (self.trainer_prob_squared / n - p * p) * (self.behaviour_prob_squared / n - q * q)
        return (self.prob_product / n - p * q) / math.sqrt(spread) if spread > 0.0 else 0.0


S = TypeVar("S", UpdateSums, GapSums)


def merge(parts: Iterable[S], empty: S) -> S:
    """One from many: micro-batches, updates or ranks."""
    found = [empty, *parts]
    combined: dict[str, float] = {}
    for field in fields(empty):
        values = [float(getattr(part, field.name)) for part in found]
        if field.name.endswith("_max"):
            combined[field.name] = max(values)
        else:
            combined[field.name] = min(values) if field.name.endswith("_min") else math.fsum(values)
    return type(empty)(**combined)


def update_sums(  # noqa: PLR0913 (everything that a token's loss is made of, by keyword)
    token: TokenLoss,
    *,
    policy_loss: Tensor,
    loss: Tensor,
    logp: Tensor,
    entropy: Tensor,
    reference_kl: Tensor | None,
    kept: Tensor,
) -> UpdateSums:
    """Sums of one micro-batch.

    Args:
        policy_loss, loss: weighted, so that their sums are the losses.
        kept: bool [n], the tokens that are trained; all others are left out.
    """
    with torch.no_grad():
        k3 = torch.expm1(token.log_ratio) - token.log_ratio
        parts = {
            "tokens": kept.sum(),
            "loss": loss.sum(),
            "policy_loss": policy_loss.sum(),
            "reference_kl": _sum(reference_kl, kept) if reference_kl is not None else kept.sum() * 0,
            "entropy": _sum(entropy, kept),
            "probability": _sum(torch.exp(logp), kept),
            "clipped_high": _sum(token.clipped_high, kept),
            "clipped_low": _sum(token.clipped_low, kept),
            "dual_clipped": _sum(token.dual_clipped, kept),
            "log_ratio": _sum(token.log_ratio, kept),
            "log_ratio_k3": _sum(k3, kept),
            "ratio": _sum(token.ratio, kept),
            "ratio_max": (token.ratio * kept).max(),
        }
        return UpdateSums(**_floats(parts))


def gap_sums(
    trainer: Tensor, behaviour: Tensor, weights: Tensor, rule: WeightRule | None, responses: Responses, kept: Tensor
) -> GapSums:
    """Sums of one micro-batch.

    Args:
        trainer, behaviour: log-probs of every response token.
        weights: the importance weights as applied; `rule` is None when they are all 1.
        kept: bool [n], False where a token was rejected.

    Source: verl `compute_offpolicy_metrics` and `compute_is_metrics`.
    """
    with torch.no_grad():
        level = rule.level if rule else "token"
        return GapSums(
            **_floats(
                {
                    **_probability_sums(trainer, behaviour),
                    **_response_sums(trainer, behaviour, responses),
                    **_weight_sums(raw_weights(trainer, behaviour, level, responses), weights, rule),
                    "rejected_tokens": (~kept).sum(),
                    "rejected_sequences": (responses.sum((~kept).to(trainer.dtype)) > 0).sum(),
                }
            )
        )


def _probability_sums(trainer: Tensor, behaviour: Tensor) -> dict[str, Tensor]:
    gap, p, q = (trainer - behaviour).abs(), torch.exp(trainer), torch.exp(behaviour)
    weight = torch.exp(torch.clamp(trainer - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return {
        "gap": gap.sum(),
        "gap_max": gap.max(),
        "prob_gap": (p - q).abs().sum(),
        "prob_gap_max": (p - q).abs().max(),
        "trainer_prob": p.sum(),
        "behaviour_prob": q.sum(),
        "trainer_prob_squared": p.square().sum(),
        "behaviour_prob_squared": q.square().sum(),
        "prob_product": (p * q).sum(),
        "kl": kl_estimate("k1", behaviour, trainer).sum(),
        "kl_k3": kl_estimate("k3", behaviour, trainer).sum(),
        "chi2": weight.square().sum(),
    }


def _response_sums(trainer: Tensor, behaviour: Tensor, responses: Responses) -> dict[str, Tensor]:
    everything = torch.ones_like(trainer, dtype=torch.bool)
    ours, theirs = -responses.mean(trainer, everything), -responses.mean(behaviour, everything)
    log_weight = torch.clamp(responses.sum(trainer - behaviour), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "tokens": everything.sum(),
        "sequences": torch.ones_like(ours).sum(),
        "trainer_perplexity": torch.exp(ours).sum(),
        "behaviour_perplexity": torch.exp(theirs).sum(),
        "log_perplexity": (ours - theirs).sum(),
        "log_perplexity_abs": (ours - theirs).abs().sum(),
        "chi2_sequence": torch.exp(2.0 * log_weight).sum(),
    }


def _weight_sums(raw: Tensor, weights: Tensor, rule: WeightRule | None) -> dict[str, Tensor]:
    cap, floor = (math.inf, 0.0) if rule is None else (rule.cap, rule.floor or 1.0 / rule.cap)
    return {
        "weight": weights.sum(),
        "weight_squared": weights.square().sum(),
        "weight_max": weights.max(),
        "weight_min": weights.min(),
        "weight_high": (raw > cap).sum(),
        "weight_low": (raw < floor).sum(),
    }


def _sum(values: Tensor, kept: Tensor) -> Tensor:
    return (values * kept).sum()


def _floats(parts: dict[str, Tensor]) -> dict[str, float]:
    """One transfer from the device for all of them."""
    values = torch.stack([part.to(torch.float64) for part in parts.values()]).tolist()
    return dict(zip(parts, values, strict=True))
