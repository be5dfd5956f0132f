"""Importance weights and rejection on two responses, of three tokens and of one, worked by hand."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from sluice.algorithms.losses import Rejection, RejectionRule, Responses, WeightRule, kept_tokens, raw_weights
from sluice.algorithms.losses import importance_weights as bounded

RESPONSES = Responses(torch.tensor([0, 0, 0, 1]), 2)
RATIOS = torch.tensor([0.5, 1.5, 4.0, 0.25], dtype=torch.float64)
"""π_trainer / π_behaviour: the first response has the weight 3."""
TRAINER, BEHAVIOUR = RATIOS.log(), torch.zeros(4, dtype=torch.float64)


def weights(rule: WeightRule) -> list[float]:
    return bounded(raw_weights(TRAINER, BEHAVIOUR, rule.level, RESPONSES), rule).tolist()


def test_truncated_weights_are_the_ratio_up_to_the_cap() -> None:
    assert weights(WeightRule("token", cap=2.0)) == pytest.approx([0.5, 1.5, 2.0, 0.25])


def test_masked_weights_are_the_ratio_inside_the_bounds_and_zero_outside() -> None:
    assert weights(WeightRule("token", cap=2.0, masked=True, floor=0.4)) == pytest.approx([0.5, 1.5, 0.0, 0.0])


def test_at_sequence_level_all_tokens_have_the_product_of_the_response() -> None:
    assert weights(WeightRule("sequence", cap=5.0)) == pytest.approx([3.0, 3.0, 3.0, 0.25])
    assert weights(WeightRule("sequence", cap=2.0)) == pytest.approx([2.0, 2.0, 2.0, 0.25])
    assert weights(WeightRule("sequence", cap=2.0, masked=True)) == pytest.approx([0.0, 0.0, 0.0, 0.25])


def test_weights_have_no_gradient_and_no_overflow() -> None:
    trainer = torch.tensor([900.0], requires_grad=True)
    raw = raw_weights(trainer, torch.zeros(1), "token", Responses(torch.zeros(1, dtype=torch.int64), 1))
    assert not raw.requires_grad
    assert raw.item() == pytest.approx(math.exp(20.0))


def kept(statistic: Rejection, upper: float, lower: float = 0.0) -> list[bool]:
    return kept_tokens(TRAINER, BEHAVIOUR, RejectionRule(statistic, upper, lower), RESPONSES).tolist()


def k2(ratio: float) -> float:
    return math.log(ratio) ** 2 / 2


def k3(ratio: float) -> float:
    """Of KL(behaviour ‖ trainer): exp(−d) + d − 1 with d = log behaviour − log trainer."""
    return ratio - 1 - math.log(ratio)


def test_k1_bounds_the_weight_of_a_token_of_a_response_or_its_geometric_mean() -> None:
    assert kept("token_k1", 2.0, 0.4) == [True, True, False, False]
    assert kept("seq_sum_k1", 2.9, 0.2) == [False, False, False, True]
    assert kept("seq_sum_k1", 3.1, 0.3) == [True, True, True, False]
    assert kept("seq_mean_k1", 1.5, 0.5) == [True, True, True, False]  # 3 ** (1/3) is 1.44


def test_k2_and_k3_bound_an_estimate_from_above() -> None:
    assert kept("token_k2", k2(0.5)) == [True, True, False, False]
    assert kept("token_k3", k3(0.5) + 1e-9) == [True, True, False, False]
    for kind, estimate in (("k2", k2), ("k3", k3)):
        values = [estimate(float(r)) for r in RATIOS]
        for scope, first in (("sum", sum(values[:3])), ("mean", sum(values[:3]) / 3), ("max", max(values[:3]))):
            statistic: Rejection = next(s for s in get_args(Rejection) if s == f"seq_{scope}_{kind}")
            bound = max(first, values[3]) - 1e-9
            assert kept(statistic, bound) == [first <= bound] * 3 + [values[3] <= bound]
            assert kept(statistic, bound + 2e-9) == [True] * 4


def test_every_rejection_keeps_everything_when_both_policies_are_one() -> None:
    same: Tensor = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    for statistic in get_args(Rejection):
        assert kept_tokens(same, same, RejectionRule(statistic, 1.001, 0.999), RESPONSES).all()


def test_what_is_not_a_number_is_never_rejected_so_that_the_loss_finds_it() -> None:
    trainer, behaviour = torch.full((4,), math.nan), torch.zeros(4)
    for statistic in get_args(Rejection):
        assert kept_tokens(trainer, behaviour, RejectionRule(statistic, 1.001, 0.999), RESPONSES).all()
