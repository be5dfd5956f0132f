"""An optimizer update is the same whatever the packing, the sharing, the micro-batches and the ranks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.trainer.fetching import assemble_share, plan_share
from services.trainer.learner import Learner
from services.trainer.ranks import Ranks
from sluice.config import RunSpec
from sluice.errors import DivergedError
from sluice.types import Rollout
from tests.servers import free_port
from tests.trainer.script import make_batch, make_spec
from tests.trainer.updating import GradientProbe, several_groups, update, weights

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")
SAME = 1e-5
"""Relative difference of gradients, in float32."""


def reference(spec: RunSpec) -> dict[str, Tensor]:
    """The gradient by the shortest honest way: one padded row a response, all logits, autograd, no DeepSpeed."""
    batch, rollouts = make_batch(spec)
    model: Any = AutoModelForCausalLM.from_pretrained(spec.model.path, dtype=torch.float32)
    total = sum(len(r.token_ids) for group in rollouts.values() for r in group)
    loss = torch.zeros(())
    for group in batch.groups:
        rewards = torch.tensor([r.acc for r in group.rollouts], dtype=torch.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        logps = padded_log_probs(model, rollouts[group.n], spec.rollout.temperature)
        for rollout, advantage, logp in zip(rollouts[group.n], advantages, logps, strict=True):
            loss = loss + token_losses(spec, logp, torch.tensor(list(rollout.logprobs)), float(advantage)).sum() / total
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def padded_log_probs(model: Any, rollouts: list[Rollout], temperature: float) -> list[Tensor]:
    rows = [(*r.prompt_token_ids, *r.token_ids) for r in rollouts]
    width = max(map(len, rows))
    ids = torch.tensor([row + (0,) * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logp = torch.log_softmax(model(input_ids=ids, attention_mask=mask).logits / temperature, dim=-1)
    start = len(rollouts[0].prompt_token_ids)
    return [
        torch.stack([logp[i, start + t - 1, token] for t, token in enumerate(r.token_ids)] or [torch.zeros(())])[
            : len(r.token_ids)
        ]
        for i, r in enumerate(rollouts)
    ]


def token_losses(spec: RunSpec, logp: Tensor, behaviour: Tensor, advantage: float) -> Tensor:
    a = spec.algorithm
    recompute = a.proximal == "recompute"
    ratio = torch.exp(logp - (logp.detach() if recompute else behaviour))
    importance = torch.clamp(torch.exp(logp.detach() - behaviour), max=2.0) if recompute else 1.0
    worst = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - a.clip_ratio_low, 1 + a.clip_ratio_high))
    bounded = torch.minimum(worst, torch.tensor(-advantage * a.clip_ratio_c)) if advantage < 0 else worst
    return bounded * importance


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """‖found − expected‖ / ‖expected‖ over all parameters."""
    assert found.keys() == expected.keys()
    difference = sum(float((found[name] - expected[name]).square().sum()) for name in expected)
    return math.sqrt(difference / sum(float(g.square().sum()) for g in expected.values()))


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
def test_the_gradient_is_that_of_padded_rows(
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


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_other_aggregations_do_not_depend_on_the_split_either(tiny_model: Path, one_rank: Ranks, mode: str) -> None:
    gradients = []
    for budget in (16, 512):
        trainer = {"total_steps": 1, "prompts_per_step": 3, "max_tokens_per_micro_batch": budget}
        engine, _ = update(make_spec(tiny_model, trainer=trainer, algorithm={"loss_agg_mode": mode}), one_rank)
        gradients.append(engine.gradients[0])
    assert distance(*gradients) < SAME


def test_two_ranks_make_the_update_that_one_makes(tiny_model: Path, one_rank: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "tests.trainer.updating", str(tiny_model), str(out)]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **address, "RANK": str(r), "LOCAL_RANK": "0"}) for r in (0, 1)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    two = torch.load(out)
    engine, outcome = update(several_groups(tiny_model), one_rank)
    assert two["norm"] == pytest.approx(outcome.grad_norms[0], rel=SAME)
    assert two["loss"] == pytest.approx(outcome.sums.loss, rel=SAME)
    assert distance(two["weights"], weights(engine)) < SAME


def test_several_updates_keep_the_anchor_of_the_first(tiny_model: Path, one_rank: Ranks) -> None:
    trainer = {"total_steps": 1, "prompts_per_step": 4, "updates_per_step": 2, "max_tokens_per_micro_batch": 32}
    engine, outcome = update(make_spec(tiny_model, trainer=trainer), one_rank)
    first, second = engine.gradients
    assert outcome.updates == 2
    assert outcome.sums.log_ratio != 0.0  # the second update is measured against the policy before the first
    assert distance(first, second) > 0.1


def test_a_loss_that_is_not_finite_names_the_groups_and_changes_no_weight(tiny_model: Path, one_rank: Ranks) -> None:
    spec = make_spec(tiny_model)
    engine = GradientProbe(spec)
    before = weights(engine)
    batch, rollouts = make_batch(spec)
    share = assemble_share(plan_share(batch, spec, 0, 1), rollouts, spec, engine.limits)
    broken = share.mini_batches[0][0]
    broken.behaviour[broken.of_response == broken.groups.index(1)] = math.nan
    with pytest.raises(DivergedError, match=r"groups \[1\] is NaN or Inf"):
        Learner(engine, one_rank, spec).train(share.mini_batches, lambda _: 1e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(engine).items())
