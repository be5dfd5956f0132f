"""Batches and the ways to lay them out, for tests that compare the trainer with the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from hypothesis import strategies as st

from services.trainer.assignment import make_responses
from services.trainer.packing import MicroBatch, PackingLimits, micro_batch, pack
from sluice.algorithms.aggregation import Mode
from sluice.algorithms.losses import KlType, Rejection
from sluice.config import RunSpec
from sluice.packed import LogProbs
from sluice.types import Batch, BatchGroup, FinishReason, Rollout
from tests.trainer.plain_engine import without_float32
from tests.trainer.reference import PlainTrainer
from tests.trainer.script import make_batch, make_spec

LR = 1e-2
PROMPTS = 4


@dataclass(frozen=True)
class Layout:
    """How the work of an update is laid out."""

    rows: str
    budget: int
    checkpointing: bool
    seed: int
    """Of the order of groups in a mini-batch, and of its micro-batches."""
    mask_length: int = 512
    """Longer rows are attended to block by block."""


@st.composite
def algorithms(draw: st.DrawFn) -> dict[str, Any]:
    """Any algorithm that the run file accepts."""
    mode = draw(st.sampled_from(["vanilla", "gspo", "cispo"]))
    fields: dict[str, Any] = {
        "loss_mode": mode,
        "loss_agg_mode": "seq-mean-token-mean" if mode == "gspo" else draw(st.sampled_from(get_args(Mode))),
        "norm_adv_by_std": draw(st.booleans()),
        "overlong_filtering": draw(st.booleans()),
        "proximal": draw(st.sampled_from(["recompute", "bypass"])),
        "entropy_coeff": draw(st.sampled_from([0.0, 0.01])),
        "kl_loss_coef": draw(st.sampled_from([0.0, 0.1])),
        "kl_loss_type": draw(st.sampled_from(get_args(KlType))),
        "clip_ratio_c": draw(st.sampled_from([1.5, 10.0])),
        "importance_weight_cap": draw(st.sampled_from([None, 1.2, 2.0])),
    }
    if fields["importance_weight_cap"]:
        fields["importance_weight_level"] = draw(st.sampled_from(["token", "sequence"]))
        fields["importance_weight_mode"] = draw(st.sampled_from(["truncate", "mask"]))
        fields["importance_weight_floor"] = 0.6 if fields["importance_weight_mode"] == "mask" else 0.0
    rejection = draw(st.sampled_from([None, *get_args(Rejection)]))
    if rejection:
        fields["rejection"] = rejection
        fields["rejection_upper"] = 1.5 if rejection.endswith("k1") else 0.1
    return fields


LAYOUTS = st.builds(
    Layout,
    rows=st.sampled_from(["shared", "packed", "padded"]),
    budget=st.sampled_from([16, 24, 512]),
    mask_length=st.sampled_from([2, 8, 512]),
    checkpointing=st.booleans(),
    seed=st.integers(0, 9),
)


def spec_of(  # what a step can differ by
    model: Path, algorithm: dict[str, Any], layout: Layout, updates: int = 1, epochs: int = 1, slices: int = 1
) -> RunSpec:
    return make_spec(
        model,
        rollout={"group_size": 4, "max_response_length": 8, "temperature": 0.8},
        trainer={
            "total_steps": 1,
            "prompts_per_step": PROMPTS,
            "updates_per_step": updates,
            "epochs_per_step": epochs,
            "max_tokens_per_micro_batch": layout.budget,
            "sequence_parallel": slices,
            "activation_checkpointing": layout.checkpointing,
            "zero_stage": 1,
        },
        algorithm=algorithm,
        optim={"lr": LR, "eps": 1e-2},
    )


def disturb(body: Any) -> None:
    """Make a reference model that differs from the policy."""
    with torch.no_grad():
        for weight in body.layers.parameters():
            weight.mul_(1.02)


def plain_trainer(spec: RunSpec) -> PlainTrainer:
    return PlainTrainer(spec, without_float32, lambda causal: disturb(causal.base_model))


def near_policy(plain: PlainTrainer, spec: RunSpec) -> tuple[Batch, dict[int, list[Rollout]]]:
    """A batch whose behaviour policy is near enough that every bound lets some tokens through; some are truncated."""
    batch, rollouts = make_batch(spec)
    rng = random.Random(1)
    found: dict[int, list[Rollout]] = {}
    for n, group in rollouts.items():
        found[n] = []
        for rollout in group:
            with torch.no_grad():
                logp = plain.log_probs(plain.model, rollout)[0].tolist() if rollout.token_ids else []
            noisy = LogProbs(min(p + rng.gauss(0.0, 0.4), 0.0) for p in logp)
            found[n].append(replace(rollout, logprobs=noisy))
    groups = [
        replace(
            g, rollouts=tuple(replace(r, finish_reason=rng.choice([*FinishReason])) for r in g.rollouts)
        )
        for g in batch.groups
    ]  # fmt: skip
    return replace(batch, groups=tuple(groups)), found


def lay_out(
    plan: Sequence[Sequence[BatchGroup]], rollouts: dict[int, list[Rollout]], spec: RunSpec, layout: Layout
) -> list[list[MicroBatch]]:
    """One replica's share of a batch, as the layout says."""
    rng = random.Random(layout.seed)
    limits = PackingLimits(
        layout.budget,
        layout.rows == "shared",
        attention_unit=64,
        mask_length=layout.mask_length,
        slices=spec.trainer.sequence_parallel,
    )
    mini_batches = []
    for groups in plan:
        responses = [make_responses(g, rollouts[g.n], spec) for g in rng.sample(groups, len(groups))]
        if layout.rows == "padded":
            every = [[r] for group in responses for r in group]
            size = max(layout.budget // 12, 1)
            micro_batches = [micro_batch(every[at : at + size], limits) for at in range(0, len(every), size)]
        else:
            micro_batches = pack(responses, limits)
        mini_batches.append(rng.sample(micro_batches, len(micro_batches)))
    return mini_batches
