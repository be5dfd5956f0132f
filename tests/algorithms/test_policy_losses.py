"""The policy losses against hand-worked numbers and against their definitions."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sluice.algorithms.losses import ClipRange, Responses, cispo_token_loss, dapo_token_loss, gspo_token_loss

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


def gspo(logp: Tensor, advantages: list[float], of_response: list[int], kept: list[bool] | None = None) -> Tensor:
    responses = Responses(torch.tensor(of_response), max(of_response) + 1)
    mask = torch.tensor(kept or [True] * len(of_response))
    return gspo_token_loss(logp, torch.zeros_like(logp), torch.tensor(advantages), DAPO, responses, mask).loss


def test_gspo_gives_all_tokens_of_a_response_the_geometric_mean_of_their_ratios() -> None:
    logp = torch.tensor([1.2, 1.0, 0.9, 1.1]).log()
    loss = gspo(logp, [1.0, 1.0, 1.0, -1.0], [0, 0, 0, 1])
    mean = (1.2 * 1.0 * 0.9) ** (1 / 3)
    torch.testing.assert_close(loss, torch.tensor([-mean, -mean, -mean, 1.1]))


def test_gspos_gradient_under_the_mean_over_responses_is_that_of_its_objective() -> None:
    logp = torch.tensor([0.1, -0.2, 0.05, 0.3], dtype=torch.float64, requires_grad=True)
    token = gspo(logp, [1.0, 1.0, 1.0, -0.5], [0, 0, 0, 1])
    (found,) = torch.autograd.grad((token * torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2])).sum(), logp)
    printed = (-1.0 * torch.exp(logp[:3].mean()) + 0.5 * torch.clamp(torch.exp(logp[3]), 0.8, 9.0)) / 2
    (expected,) = torch.autograd.grad(printed, logp)
    torch.testing.assert_close(found, expected)


def test_gspo_clips_a_response_as_a_whole_and_has_no_dual_clip() -> None:
    logp = torch.tensor([1.2, 1.6, 50.0]).log().requires_grad_()
    loss = gspo(logp, [1.0, 1.0, -1.0], [0, 0, 1])
    torch.testing.assert_close(loss.detach(), torch.tensor([-1.28, -1.28, 50.0]))
    assert torch.autograd.grad(loss[:2].sum(), logp)[0].tolist() == [0.0, 0.0, 0.0]


def test_a_token_that_is_not_kept_is_in_no_mean_over_its_response() -> None:
    logp = torch.tensor([1.1, 3.0]).log()
    torch.testing.assert_close(gspo(logp, [1.0, 1.0], [0, 0], [True, False])[0], torch.tensor(-1.1))


def test_cispo_weighs_the_policy_gradient_with_the_clipped_ratio_and_stops_no_token() -> None:
    logp = torch.tensor([math.log(r) - 1.0 for r in (1.1, 5.0, 0.1)], requires_grad=True)
    advantages = torch.tensor([2.0, 2.0, -1.0])
    token = cispo_token_loss(logp, torch.full((3,), -1.0), advantages, DAPO)
    weight = torch.tensor([1.1, 1.28, 0.8])
    torch.testing.assert_close(token.loss, -advantages * weight * logp)
    torch.testing.assert_close(torch.autograd.grad(token.loss.sum(), logp)[0], -advantages * weight)
    assert token.clipped_high.tolist() == [False, True, False]
    assert token.clipped_low.tolist() == [False, False, True]


def test_a_lower_bound_of_one_or_more_is_no_lower_bound() -> None:
    logp = torch.tensor([math.log(0.01)])
    open_below = ClipRange(low=1.0, high=0.28, dual=10.0)
    token = cispo_token_loss(logp, torch.zeros(1), torch.tensor([1.0]), open_below)
    torch.testing.assert_close(token.loss, -0.01 * logp)
    assert not token.clipped_low.any()


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
