"""Updates on DeepSpeed as the trainer makes them, with the whole gradient of each kept for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.trainer.fetching import assemble_share, plan_share
from services.trainer.learner import Learner, Outcome
from services.trainer.policy import load_policy, packing_limits
from services.trainer.ranks import Ranks
from services.trainer.reference import reference_of_run
from services.trainer.sequence import SequenceGroup
from services.trainer.zero import ZeroEngine
from sluice.config import RunSpec, parse_run_spec
from sluice.types import Batch, Rollout
from tests.trainer.script import make_batch, make_spec

CPU = torch.device("cpu")
LR = 1e-2


class GradientProbe(ZeroEngine):
    """Keeps the whole gradient of each update, by parameter, and then makes the update as usual."""

    def __init__(self, spec: RunSpec, universal: bool = False, sequence: SequenceGroup | None = None) -> None:
        policy = load_policy(spec, sequence)
        super().__init__(policy, spec, CPU, universal)
        self.policy = policy
        self.limits = packing_limits(policy, spec)
        self.gradients: list[dict[str, Tensor]] = []

    def step(self, lr: float) -> float | None:
        from deepspeed.utils import safe_get_full_grad

        trained = [p for p in self._engine.module.parameters() if p.requires_grad]
        self.gradients.append({self._names[p]: safe_get_full_grad(p).clone() for p in trained})
        return super().step(lr)


def update(
    spec: RunSpec, ranks: Ranks, batch: Batch | None = None, rollouts: Mapping[int, list[Rollout]] | None = None
) -> tuple[GradientProbe, Outcome]:
    """Train a batch once, the spec's own unless given; every rank sees the same gradients."""
    engine = GradientProbe(spec, sequence=ranks.sequence)
    if batch is None or rollouts is None:
        batch, rollouts = make_batch(spec)
    return engine, train_batch(engine, spec, ranks, batch, rollouts)


def train_batch(
    engine: GradientProbe, spec: RunSpec, ranks: Ranks, batch: Batch, rollouts: Mapping[int, list[Rollout]]
) -> Outcome:
    """This rank's part of one training step."""
    plan = plan_share(batch, spec, ranks.replica, ranks.replicas)
    share = assemble_share(plan, rollouts, spec, engine.limits)
    learner = Learner(engine, ranks, spec, reference_of_run(spec, engine, ranks.sequence))
    return learner.train(share.mini_batches, lambda _: LR)


def weights(engine: ZeroEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for block in engine.parameters() for name, tensor in block}


def adapters(engine: ZeroEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for block in engine.adapters() for name, tensor in block}


def lora_spec(model: Path, stage: int, /, target_modules: list[str] | None = None, **of_model: Any) -> RunSpec:
    """The run of `several_groups` with adapters."""
    fields = several_groups(model, stage).model_dump()
    fields["model"] |= of_model
    return parse_run_spec({**fields, "lora": {"rank": 4, "alpha": 8, "target_modules": target_modules}})


def several_groups(model: Path, stage: int = 3) -> RunSpec:
    """Two updates of three groups, so that two ranks never have as many micro-batches; a soft optimizer step."""
    trainer = {
        "total_steps": 1,
        "prompts_per_step": 6,
        "updates_per_step": 2,
        "max_tokens_per_micro_batch": 24,
        "zero_stage": stage,
    }
    algorithm = {"kl_loss_coef": 0.1, "kl_loss_type": "k2", "entropy_coeff": 0.01}
    return make_spec(model, trainer=trainer, optim={"lr": LR, "eps": 1e-2}, algorithm=algorithm)
