"""An update on DeepSpeed, in float32, is the reference's: any stage, packing, checkpointing, and number of ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.trainer.fetching import assemble_share, plan_share
from services.trainer.learner import Learner
from services.trainer.ranks import Ranks
from services.trainer.reference import reference_of_run
from sluice.config import RunSpec
from sluice.errors import DivergedError
from tests.trainer import several_ranks
from tests.trainer.layouts import Layout, lay_out
from tests.trainer.real_shapes import real_spec, wide_batch
from tests.trainer.reference import PlainTrainer, distance
from tests.trainer.script import make_batch, make_spec
from tests.trainer.updating import GradientProbe, several_groups, update, weights

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")
SAME = 1e-5
"""Relative difference of gradients, in float32."""


def plain(spec: RunSpec) -> PlainTrainer:
    return PlainTrainer(spec, lambda causal: causal, lambda causal: None)


def reference(spec: RunSpec) -> dict[str, Tensor]:
    """The gradient of the spec's first update."""
    return plain(spec).step(*make_batch(spec), 0.0)[0].gradient


@pytest.mark.parametrize("proximal", ["recompute", "bypass"])
@pytest.mark.parametrize(
    "trainer",
    [
        {"prefix_sharing": True, "max_tokens_per_micro_batch": 512},
        {"prefix_sharing": True, "max_tokens_per_micro_batch": 16},
        {"prefix_sharing": False, "max_tokens_per_micro_batch": 512},
        {"prefix_sharing": False, "max_tokens_per_micro_batch": 24, "activation_checkpointing": True},
        {"zero_stage": 1, "max_tokens_per_micro_batch": 24},
    ],
    ids=["shared, one micro-batch", "shared, many", "plain, one", "plain, many, checkpointed", "stage 1"],
)
def test_the_gradient_is_the_references(
    tiny_model: Path, one_rank: Ranks, trainer: dict[str, Any], proximal: str
) -> None:
    spec = make_spec(
        tiny_model,
        rollout={"group_size": 4, "max_response_length": 8, "temperature": 0.8},
        trainer={"total_steps": 1, "prompts_per_step": 3, **trainer},
        algorithm={"proximal": proximal},
    )
    engine, _ = update(spec, one_rank)
    assert distance(engine.gradients[0], reference(spec)) < SAME


@pytest.mark.parametrize("stage", [3, 1])
def test_two_ranks_make_the_updates_that_one_makes(
    tiny_model: Path, one_rank: Ranks, two_ranks: tuple[Any, Path], stage: int
) -> None:
    found, loss, norms = two_ranks[0]["all", stage]
    engine, outcome = update(several_groups(tiny_model, stage), one_rank)
    assert norms == pytest.approx(outcome.grad_norms, rel=SAME)
    assert loss == pytest.approx(outcome.sums.loss, rel=SAME)
    assert distance(found, weights(engine)) < SAME


def test_at_real_widths_the_gradient_is_the_references_for_every_layout_and_for_two_ranks(
    one_layer: Path, one_rank: Ranks, tmp_path: Path
) -> None:
    spec = real_spec(one_layer)
    batch, rollouts = wide_batch(spec)
    expected = plain(spec).step(batch, rollouts, 0.0)[0].gradient
    assert distance(several_ranks.run("wide", 2, one_layer, tmp_path), expected) < SAME
    engine = GradientProbe(spec)
    learner = Learner(engine, one_rank, spec)
    plan = plan_share(batch, spec, 0, 1)
    layouts = [Layout("shared", 24, False, 0), Layout("packed", 24, False, 1), Layout("padded", 512, False, 2)]
    for layout in layouts:
        learner.train(lay_out(plan, rollouts, spec, layout), lambda _: 0.0)  # no weight changes
    engine.policy.body.activation_checkpointing_enable({"use_reentrant": False})
    learner.train(lay_out(plan, rollouts, spec, layouts[0]), lambda _: 0.0)
    assert max(distance(gradient, expected) for gradient in engine.gradients) < SAME


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_the_kl_term_pulls_towards_the_initial_model_which_is_sharded_or_in_host_memory(
    tiny_model: Path, one_rank: Ranks, kind: str
) -> None:
    spec = several_groups(tiny_model)
    algorithm = spec.algorithm.model_copy(update={"kl_loss_type": kind})
    trainer = spec.trainer.model_copy(update={"offload_reference": kind == "k3"})
    spec = spec.model_copy(update={"algorithm": algorithm, "trainer": trainer})
    engine, outcome = update(spec, one_rank)
    expected = plain(spec).step(*make_batch(spec), 1e-2)
    assert outcome.sums.reference_kl > 0.0  # the second update starts away from the initial model
    assert outcome.sums.loss == pytest.approx(sum(u.loss for u in expected), rel=1e-4)
    for found, wanted in zip(engine.gradients, expected, strict=True):
        assert distance(found, wanted.gradient) < SAME


def test_without_a_kl_term_there_is_no_reference_model_in_memory(tiny_model: Path, one_rank: Ranks) -> None:
    spec = make_spec(tiny_model)
    assert reference_of_run(spec, GradientProbe(spec)) is None


def test_several_updates_keep_the_anchor_of_the_first(tiny_model: Path, one_rank: Ranks) -> None:
    trainer = {"total_steps": 1, "prompts_per_step": 4, "updates_per_step": 2, "max_tokens_per_micro_batch": 32}
    engine, outcome = update(make_spec(tiny_model, trainer=trainer), one_rank)
    first, second = engine.gradients
    assert outcome.updates == 2
    assert outcome.sums.log_ratio != 0.0  # the second update is measured against the policy before the first
    assert distance(first, second) > 0.1


@pytest.mark.parametrize("algorithm", [{}, {"rejection": "seq_mean_k1", "rejection_upper": 1000.0}])
def test_a_loss_that_is_not_finite_names_the_groups_and_changes_no_weight(
    tiny_model: Path, one_rank: Ranks, algorithm: dict[str, Any]
) -> None:
    spec = make_spec(tiny_model, algorithm=algorithm)
    engine = GradientProbe(spec)
    before = weights(engine)
    batch, rollouts = make_batch(spec)
    share = assemble_share(plan_share(batch, spec, 0, 1), rollouts, spec, engine.limits)
    broken = share.mini_batches[0][0]
    broken.behaviour[broken.of_response == broken.groups.index(1)] = math.nan
    with pytest.raises(DivergedError, match=r"groups \[1\] is NaN or Inf"):
        Learner(engine, one_rank, spec).train(share.mini_batches, lambda _: 1e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(engine).items())
