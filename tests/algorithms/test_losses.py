"""DAPO's token loss against hand-worked numbers and against its definition."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sluice.algorithms.losses import ClipRange, dapo_token_loss, importance_weights, metric_sums

DAPO = ClipRange(low=0.2, high=0.28, dual=10.0)


def loss_and_gradient(ratio: float, advantage: float) -> tuple[float, float]:
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    result = dapo_token_loss(logp, torch.zeros(1), torch.tensor([advantage]), DAPO).loss
    (gradient,) = torch.autograd.grad(result.sum(), logp)
    return float(result.detach()), float(gradient)


def close(actual: tuple[float, float], expected: tuple[float, float]) -> bool:
    return all(math.isclose(a, e, rel_tol=1e-5, abs_tol=1e-6) for a, e in zip(actual, expected, strict=True))


def test_inside_the_clip_range_the_loss_is_minus_advantage_times_ratio() -> None:
    assert close(loss_and_gradient(1.1, 2.0), (-2.2, -2.2))
    assert close(loss_and_gradient(0.9, -2.0), (1.8, 1.8))


def test_a_good_token_stops_gaining_above_one_plus_high_which_is_wider_than_low() -> None:
    assert close(loss_and_gradient(1.27, 1.0), (-1.27, -1.27))
    assert close(loss_and_gradient(1.5, 1.0), (-1.28, 0.0))


def test_a_bad_token_stops_losing_below_one_minus_low() -> None:
    assert close(loss_and_gradient(0.7, -1.0), (0.8, 0.0))


def test_the_pessimistic_side_is_never_clipped() -> None:
    assert close(loss_and_gradient(0.5, 1.0), (-0.5, -0.5))
    assert close(loss_and_gradient(3.0, -1.0), (3.0, 3.0))


def test_the_dual_clip_bounds_what_a_bad_token_costs_when_the_ratio_explodes() -> None:
    assert close(loss_and_gradient(50.0, -2.0), (20.0, 0.0))
    assert close(loss_and_gradient(9.0, -2.0), (18.0, 18.0))


def test_a_log_ratio_beyond_20_is_clamped_and_stays_finite() -> None:
    logp = torch.tensor([500.0, -500.0], requires_grad=True)
    token = dapo_token_loss(logp, torch.zeros(2), torch.tensor([1.0, 1.0]), DAPO)
    assert torch.isfinite(token.loss).all()
    assert token.log_ratio.tolist() == [20.0, -20.0]


def test_clip_marks_name_the_side_that_decided() -> None:
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 50.0, 1.0])
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0])
    token = dapo_token_loss(ratios.log(), torch.zeros(6), advantages, DAPO)
    assert token.clipped_high.tolist() == [True, False, False, False, False, False]
    assert token.clipped_low.tolist() == [False, False, True, False, False, False]
    assert token.dual_clipped.tolist() == [False, False, False, False, True, False]


def test_importance_weights_are_the_ratio_up_to_the_cap_and_one_without_a_cap() -> None:
    proximal, behaviour = torch.tensor([math.log(0.5), math.log(1.5), 5.0]), torch.zeros(3)
    torch.testing.assert_close(importance_weights(proximal, behaviour, 2.0), torch.tensor([0.5, 1.5, 2.0]))
    assert importance_weights(proximal, behaviour, None).tolist() == [1.0, 1.0, 1.0]


def test_metrics_add_up_over_micro_batches() -> None:
    def sums(part: slice) -> Tensor:
        logp = torch.linspace(-1, 1, 8)[part]
        token = dapo_token_loss(logp, torch.zeros_like(logp), torch.ones_like(logp), DAPO)
        return metric_sums(token, token.loss * 0.5, logp.abs(), logp.abs(), torch.ones_like(logp))

    torch.testing.assert_close(sums(slice(0, 3)) + sums(slice(3, 8)), sums(slice(0, 8)))
    assert sums(slice(0, 8))[0] == 8


finite = st.floats(-3, 3, allow_nan=False, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=12))
def test_at_ratio_one_the_gradient_is_the_plain_policy_gradient(tokens: list[tuple[float, float]]) -> None:
    logp = torch.tensor([t[0] for t in tokens], requires_grad=True)
    advantages = torch.tensor([t[1] for t in tokens])
    loss = dapo_token_loss(logp, logp.detach(), advantages, DAPO).loss
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logp)[0], -advantages)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=12))
def test_the_loss_is_never_below_the_unclipped_objective_unless_the_dual_clip_says_so(
    tokens: list[tuple[float, float]],
) -> None:
    logp, advantages = (torch.tensor(column) for column in zip(*tokens, strict=True))
    token = dapo_token_loss(logp, torch.zeros_like(logp), advantages, DAPO)
    unclipped = -advantages * torch.exp(logp)
    assert ((token.loss >= unclipped - 1e-6) | token.dual_clipped).all()
