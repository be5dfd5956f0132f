"""Checkpoints handed from one number of ranks to another, with the whole state of the optimizer looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.trainer.checkpoint import CheckpointManifest, CheckpointStore
from services.trainer.ranks import Ranks
from sluice.config import RunSpec
from sluice.types import Checkpoint
from tests.trainer.script import RUN, make_batch, make_spec
from tests.trainer.updating import LR, GradientProbe, train_batch

STAGES = (3, 1)
State = dict[str, dict[str, Tensor]]


def spec_of(model: Path, stage: int) -> RunSpec:
    """Two updates a step, with gradients that no importance weight makes too small to tell."""
    trainer = {
        "total_steps": 2,
        "prompts_per_step": 6,
        "updates_per_step": 2,
        "max_tokens_per_micro_batch": 24,
        "zero_stage": stage,
    }
    return make_spec(
        model,
        trainer=trainer,
        optim={"lr": LR, "eps": 1e-2},
        algorithm={"importance_weight_cap": None},
    )


def step(engine: GradientProbe, spec: RunSpec, ranks: Ranks, k: int) -> State:
    """Train batch k; returns what `state` finds then."""
    train_batch(engine, spec, ranks, *make_batch(spec, seed=k))
    return state(engine)


def state(engine: GradientProbe) -> State:
    """Whole float32 masters, both moments, and the weights of the forward pass, by parameter. A collective call."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found: State = {name: {"weight": p.clone()} for block in engine.parameters() for name, p in block}
    for parameter, name in engine.policy.names.items():
        found[name]["master"] = safe_get_full_fp32_param(parameter).clone()
        for moment in ("exp_avg", "exp_avg_sq"):
            found[name][moment] = safe_get_full_optimizer_state(parameter, moment).clone()
    return found


def write(folder: Path, spec: RunSpec, ranks: Ranks) -> dict[str, Any]:
    """Train batch 0, save, and go on with batch 1: the state after each, and the random state when it was saved."""
    engine = GradientProbe(spec, sequence=ranks.sequence)
    found: dict[str, Any] = {"saved": step(engine, spec, ranks, 0)}
    torch.manual_seed(1000 + ranks.world_size)
    found["rng"] = torch.get_rng_state()
    folder.mkdir(parents=True, exist_ok=True)
    engine.save(folder)
    ranks.agree(None)
    found["next"] = step(engine, spec, ranks, 1)
    return found


def resume(folder: Path, spec: RunSpec, ranks: Ranks, universal: bool) -> dict[str, Any]:
    """The same of a trainer that begins with what is in the folder."""
    engine = GradientProbe(spec, universal, ranks.sequence)
    engine.load(folder)
    found: dict[str, Any] = {"rng": torch.get_rng_state()}
    if universal:  # DeepSpeed shows moments that it read in shards only after the next update
        found["saved"] = state(engine)
    found["next"] = step(engine, spec, ranks, 1)
    return found


def seal(root: Path, staging: Path, ranks: int) -> Checkpoint:
    """The folder as the recorded checkpoint 1.1."""
    (root / RUN).mkdir(parents=True)
    manifest = CheckpointManifest(RUN, 1, 1, "", 9, "", 2, world_size=ranks)
    return CheckpointStore(root, RUN).commit(staging, manifest, [])
