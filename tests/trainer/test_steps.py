"""Whole training steps, one after the other: the reference's, and what a batch without a trained token leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.trainer.fetching import assemble_share, plan_share
from services.trainer.learner import Learner, Outcome
from services.trainer.progress import LearningRate, Progress
from services.trainer.ranks import Ranks
from sluice.config import RunSpec
from sluice.types import Batch, FinishReason, Rollout
from tests.trainer.reference import PlainTrainer, distance
from tests.trainer.script import make_batch, make_spec
from tests.trainer.updating import GradientProbe, weights

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")
Sampled = tuple[Batch, dict[int, list[Rollout]]]


class Run:
    """Training steps of one rank on DeepSpeed, as the trainer takes them."""

    def __init__(self, spec: RunSpec, ranks: Ranks) -> None:
        self.spec, self.ranks = spec, ranks
        self.engine = GradientProbe(spec)
        self.learner = Learner(self.engine, ranks, spec)
        self.progress = Progress(0, 0)
        self.rates: list[float] = []

    def step(self, sampled: Sampled) -> Outcome:
        batch, rollouts = sampled
        share = assemble_share(plan_share(batch, self.spec, 0, 1), rollouts, self.spec, self.engine.limits)
        outcome = self.learner.train(share.mini_batches, self._rate)
        self.progress = self.progress.after(outcome.updates)
        return outcome

    def _rate(self, update: int) -> float:
        self.rates.append(LearningRate(self.spec).of(self.progress, update))
        return self.rates[-1]

    def weights(self) -> dict[str, Tensor]:
        return weights(self.engine)


def spec_of(model: Path, **algorithm: Any) -> RunSpec:
    return make_spec(
        model,
        trainer={"total_steps": 4, "prompts_per_step": 4, "updates_per_step": 2, "epochs_per_step": 2},
        optim={"lr": 1e-3, "eps": 1e-3, "lr_scheduler_type": "cosine", "lr_warmup_steps": 2, "grad_clip": 0.5},
        algorithm=algorithm,
    )


def truncated(sampled: Sampled) -> Sampled:
    """The batch with every response cut at the limit."""
    batch, rollouts = sampled
    groups = tuple(
        replace(g, rollouts=tuple(replace(r, finish_reason=FinishReason.LENGTH) for r in g.rollouts))
        for g in batch.groups
    )
    return replace(batch, groups=groups), rollouts


def test_losses_and_weights_of_three_steps_are_the_references(tiny_model: Path, one_rank: Ranks) -> None:
    spec = spec_of(tiny_model)
    run = Run(spec, one_rank)
    plain = PlainTrainer(spec, lambda causal: causal, lambda causal: None)
    for k, rate in enumerate((5e-4, 1e-3, 1e-3)):  # half the warm-up, all of it, the top of the cosine
        sampled = make_batch(spec, seed=k)
        outcome, expected = run.step(sampled), plain.step(*sampled, rate)
        assert outcome.updates == len(expected) == 4
        assert run.rates[-4:] == [rate] * 4
        # Token losses are of order 1 and nearly cancel, so their mean is compared on that scale.
        assert outcome.sums.fields(4)["loss"] == pytest.approx(sum(u.loss for u in expected) / 4, abs=1e-5)
        assert distance(run.weights(), dict(plain.model.named_parameters())) < 1e-6
    assert run.progress == Progress(updates=12, updated_steps=3)


def test_a_batch_without_a_trained_token_moves_no_weight_no_moment_and_no_schedule(
    tiny_model: Path, one_rank: Ranks
) -> None:
    spec = spec_of(tiny_model, overlong_filtering=True)
    with_it, without = Run(spec, one_rank), Run(spec, one_rank)
    first, nothing, second = make_batch(spec, 0), truncated(make_batch(spec, 1)), make_batch(spec, 2)
    with_it.step(first)
    outcome = with_it.step(nothing)
    assert (outcome.updates, outcome.trained_tokens, outcome.grad_norms) == (0, 0, ())
    with_it.step(second)
    without.step(first)
    without.step(second)
    assert with_it.rates == without.rates
    assert with_it.progress == without.progress == Progress(updates=8, updated_steps=2)
    for name, tensor in with_it.weights().items():
        assert torch.equal(tensor, without.weights()[name])


def test_a_batch_that_is_rejected_as_a_whole_makes_no_update_and_says_what_was_rejected(
    tiny_model: Path, one_rank: Ranks
) -> None:
    run = Run(spec_of(tiny_model, rejection="token_k3", rejection_upper=1e-12), one_rank)
    before = run.weights()
    outcome = run.step(make_batch(run.spec))
    assert outcome.updates == 0
    assert outcome.gap.fields()["rejected_token_fraction"] == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.weights().items())


def test_statistics_of_both_policies_are_taken_once_whatever_the_epochs(tiny_model: Path, one_rank: Ranks) -> None:
    run = Run(spec_of(tiny_model), one_rank)
    sampled = make_batch(run.spec)
    tokens = sum(len(r.token_ids) for group in sampled[1].values() for r in group)
    outcome = run.step(sampled)
    assert outcome.gap.tokens == outcome.trained_tokens == tokens
    assert outcome.sums.tokens == 2 * tokens  # two epochs
