"""One optimizer update of a batch on this process's rank; as a script, one rank of several.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python -m tests.trainer.updating MODEL OUT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from services.trainer.fetching import assemble_share, plan_share
from services.trainer.learner import Learner, Outcome
from services.trainer.policy import load_policy, packing_limits
from services.trainer.ranks import Ranks
from services.trainer.zero import ZeroEngine, join_ranks
from sluice.config import RunSpec
from tests.trainer.script import make_batch, make_spec

CPU = torch.device("cpu")
LR = 1e-2


class GradientProbe(ZeroEngine):
    """Keeps the whole gradient of each update, by parameter, and then makes the update as usual."""

    def __init__(self, spec: RunSpec) -> None:
        policy = load_policy(spec)
        super().__init__(policy, spec, CPU)
        self.limits = packing_limits(policy, spec)
        self.gradients: list[dict[str, Tensor]] = []

    def step(self, lr: float) -> float:
        from deepspeed.utils import safe_get_full_grad

        parameters = self._engine.module.parameters()
        self.gradients.append({self._names[p]: safe_get_full_grad(p).clone() for p in parameters})
        return super().step(lr)


def update(spec: RunSpec, ranks: Ranks) -> tuple[GradientProbe, Outcome]:
    """Train the spec's batch once; every rank sees the same gradients."""
    engine = GradientProbe(spec)
    batch, rollouts = make_batch(spec)
    plan = plan_share(batch, spec, ranks.rank, ranks.world_size)
    share = assemble_share(plan, rollouts, spec, engine.limits)
    outcome = Learner(engine, ranks, spec).train(share.mini_batches, lambda _: LR)
    return engine, outcome


def weights(engine: ZeroEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for block in engine.parameters() for name, tensor in block}


def several_groups(model: Path, stage: int = 3) -> RunSpec:
    """Five groups, so that two ranks never have the same number of micro-batches; a soft optimizer step."""
    trainer = {"total_steps": 1, "prompts_per_step": 5, "max_tokens_per_micro_batch": 24, "zero_stage": stage}
    return make_spec(model, trainer=trainer, optim={"lr": LR, "eps": 1e-2})


def main(model: str, out: str) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), on_gpu=False, seconds=60)
    engine, outcome = update(several_groups(Path(model)), ranks)
    found = weights(engine)
    if ranks.first:
        torch.save({"loss": outcome.sums.loss, "norm": outcome.grad_norms[0], "weights": found}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
