"""Metrics by hand on two responses, and that they do not depend on how the tokens were split."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sluice.algorithms.losses import (
    ClipRange,
    GapSums,
    Responses,
    UpdateSums,
    WeightRule,
    dapo_token_loss,
    gap_sums,
    importance_weights,
    merge,
    update_sums,
)

DAPO = ClipRange(low=0.2, high=0.28, dual=10.0)
BEHAVIOUR = torch.tensor([0.5, 0.25, 0.5, 0.8], dtype=torch.float64)
"""Probabilities; the first three are one response."""
TRAINER = torch.tensor([0.25, 0.5, 0.5, 0.2], dtype=torch.float64)
RULE = WeightRule("token", cap=1.5)


def gap(at: slice = slice(0, 4), kept: list[bool] | None = None) -> GapSums:
    index = torch.tensor([0, 0, 0, 1])[at]
    index = index - index.min()
    trainer, behaviour = TRAINER[at].log(), BEHAVIOUR[at].log()
    weights = importance_weights(torch.exp(trainer - behaviour), RULE)
    mask = torch.tensor(kept or [True] * len(index))
    return gap_sums(trainer, behaviour, weights, RULE, Responses(index, int(index.max()) + 1), mask)


def test_the_gap_between_both_policies_has_its_hand_worked_values() -> None:
    found = gap().fields()
    weights = [0.5, 1.5, 1.0, 0.25]  # 2 is above the cap
    mean = sum(weights) / 4
    expected = {
        "logprob_gap_mean": (math.log(2) + math.log(2) + 0 + math.log(4)) / 4,
        "logprob_gap_max": math.log(4),
        "prob_gap_mean": (0.25 + 0.25 + 0 + 0.6) / 4,
        "prob_gap_max": 0.6,
        "behaviour_kl": (math.log(2) - math.log(2) + 0 + math.log(4)) / 4,
        "behaviour_kl_k3": sum(w - 1 - math.log(w) for w in (0.5, 2.0, 1.0, 0.25)) / 4,
        "trainer_perplexity": ((0.25 * 0.5 * 0.5) ** (-1 / 3) + 5.0) / 2,
        "behaviour_perplexity": ((0.5 * 0.25 * 0.5) ** (-1 / 3) + 1.25) / 2,
        "log_perplexity_gap": math.log(4) / 2,
        "log_perplexity_gap_abs": math.log(4) / 2,
        "chi2_token": (0.25 + 4.0 + 1.0 + 0.0625) / 4 - 1,
        "chi2_sequence": (1.0 + 0.0625) / 2 - 1,
        "importance_weight_mean": mean,
        "importance_weight_std": math.sqrt(sum((w - mean) ** 2 for w in weights) / 4),
        "importance_weight_max": 1.5,
        "importance_weight_min": 0.25,
        "importance_weight_fraction_high": 1 / 4,
        "importance_weight_fraction_low": 2 / 4,  # below 1 / cap
        "effective_sample_size": sum(weights) ** 2 / (4 * sum(w * w for w in weights)),
        "rejected_token_fraction": 0.0,
        "rejected_sequence_fraction": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    correlation = float(torch.corrcoef(torch.stack([TRAINER, BEHAVIOUR]))[0, 1])
    assert found["prob_correlation"] == pytest.approx(correlation)
    assert found.keys() == expected.keys() | {"prob_correlation"}


def test_a_response_counts_as_rejected_with_its_first_rejected_token() -> None:
    found = gap(kept=[True, False, True, True]).fields()
    assert (found["rejected_token_fraction"], found["rejected_sequence_fraction"]) == (0.25, 0.5)


def test_without_a_correction_every_weight_is_one_and_the_whole_sample_is_effective() -> None:
    ones, index = torch.ones(4, dtype=torch.float64), Responses(torch.tensor([0, 0, 0, 1]), 2)
    found = gap_sums(TRAINER.log(), BEHAVIOUR.log(), ones, None, index, torch.ones(4, dtype=torch.bool)).fields()
    assert (found["importance_weight_mean"], found["effective_sample_size"]) == (1.0, 1.0)
    assert (found["importance_weight_fraction_high"], found["importance_weight_fraction_low"]) == (0.0, 0.0)


def sums(at: slice, kept: Tensor | None = None, reference_kl: Tensor | None = None) -> UpdateSums:
    logp = torch.linspace(-1, 0.9, 8, dtype=torch.float64)[at]
    advantages = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)[at]
    token = dapo_token_loss(logp, torch.zeros_like(logp), advantages, DAPO)
    mask = torch.ones_like(logp, dtype=torch.bool) if kept is None else kept[at]
    weighted = token.loss * 0.5 * mask
    return update_sums(
        token, policy_loss=weighted, loss=weighted + 1.0, logp=logp, entropy=logp.abs(), reference_kl=reference_kl,
        kept=mask,
    )  # fmt: skip


def test_update_metrics_are_means_over_the_trained_tokens() -> None:
    kept = torch.tensor([True] * 7 + [False])
    logp = torch.linspace(-1, 0.9, 8, dtype=torch.float64)[:7]
    found = sums(slice(0, 8), kept).fields(updates=2)
    ratio = logp.exp()
    expected: dict[str, Any] = {
        "entropy": logp.abs().mean(),
        "mean_token_probability": ratio.mean(),
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "approx_kl": -logp.mean(),
        "approx_kl_k3": (ratio - 1 - logp).mean(),
        "clip_fraction_high": 1 / 7,  # 1.87 at a positive advantage
        "clip_fraction_low": 1 / 7,  # 0.48 at a negative one
        "dual_clip_fraction": 0.0,
        "kl_loss": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx({n: float(v) for n, v in expected.items()})
    assert found["loss"] - found["policy_loss"] == pytest.approx(8 / 2)


def test_the_kl_to_the_reference_is_reported_before_its_coefficient() -> None:
    found = sums(slice(0, 8), reference_kl=torch.arange(8.0)).fields(updates=1)
    assert found["kl_loss"] == 3.5


def test_sums_of_parts_are_the_sums_of_the_whole() -> None:
    whole = sums(slice(0, 8)).fields(1)
    assert merge([sums(slice(0, 3)), sums(slice(3, 8))], UpdateSums()).fields(1) == pytest.approx(whole)
    assert merge([gap(slice(0, 3)), gap(slice(3, 4))], GapSums()).fields() == pytest.approx(gap().fields())


def test_a_step_without_a_trained_token_has_metrics_of_zero() -> None:
    assert set(merge([], UpdateSums()).fields(0).values()) == {0.0}
    assert set(merge([], GapSums()).fields().values()) == {0.0}
