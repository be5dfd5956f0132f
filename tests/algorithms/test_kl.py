"""KL estimates: hand-worked values, and what they are on average over a whole distribution."""

import math

import torch
from torch import Tensor

from sluice.algorithms.losses import KlType, kl_estimate

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
OTHER = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
EXACT = float((POLICY * (POLICY / OTHER).log()).sum())


def test_each_estimate_has_its_hand_worked_value() -> None:
    logp, other = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.4)])
    d = math.log(1.25)
    expected_of: dict[KlType, float] = {"k1": d, "k2": d * d / 2, "k3": 0.8 + d - 1}
    for kind, expected in expected_of.items():
        torch.testing.assert_close(kl_estimate(kind, logp, other), torch.tensor([expected]))


def test_k1_and_k3_are_the_divergence_on_average_and_k3_is_never_negative() -> None:
    for kind in ("k1", "k3"):
        assert math.isclose(float((POLICY * kl_estimate(kind, POLICY.log(), OTHER.log())).sum()), EXACT)
    assert (kl_estimate("k3", POLICY.log(), OTHER.log()) >= 0).all()
    assert (kl_estimate("k1", POLICY.log(), OTHER.log()) < 0).any()


def test_as_a_loss_k2_pulls_like_the_divergence_and_k1_not_at_all() -> None:
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    def as_loss(kind: KlType) -> Tensor:
        logp = logits.log_softmax(0)
        return (logp.detach().exp() * kl_estimate(kind, logp, OTHER.log())).sum()

    logp = logits.log_softmax(0)
    exact = gradient((logp.exp() * (logp - OTHER.log())).sum())
    torch.testing.assert_close(gradient(as_loss("k2")), exact)
    torch.testing.assert_close(gradient(as_loss("k1")), torch.zeros(3, dtype=torch.float64))


def test_policies_that_are_worlds_apart_give_finite_estimates() -> None:
    for kind in ("k1", "k2", "k3"):
        assert torch.isfinite(kl_estimate(kind, torch.tensor([-800.0, 0.0]), torch.tensor([0.0, -800.0]))).all()
