"""What ranks that share micro-batches compute, for tests that compare it with one rank and with the reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from services.trainer.assignment import make_responses
from services.trainer.fetching import plan_share
from services.trainer.forest import Response
from services.trainer.learner import Learner
from services.trainer.packing import PackingLimits, micro_batch
from services.trainer.ranks import Ranks
from tests.trainer import resizing
from tests.trainer.flash import flash_attention
from tests.trainer.layouts import LAYOUTS, LR, Layout, algorithms, disturb, lay_out, near_policy, plain_trainer, spec_of
from tests.trainer.plain_engine import PlainEngine
from tests.trainer.real_shapes import real_spec
from tests.trainer.script import make_batch
from tests.trainer.updating import GradientProbe

SLICES = 2
WIDE_MODEL = "WIDE_MODEL"
"""The variable that names the folder of the model with real widths."""
WIDE_LAYOUTS = (
    Layout("shared", 16, False, 0, mask_length=4),
    Layout("packed", 48, False, 1, mask_length=512),
    Layout("padded", 64, False, 2, mask_length=4),
)


def exact(ranks: Ranks, model: Path) -> Any:
    """Float64: what was drawn, the same on all ranks, and its gradients, loss, and sums over both policies."""
    found: list[Any] = []

    @settings(max_examples=3, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(algorithms(), LAYOUTS, st.sampled_from([1, 2]))
    def step(algorithm: dict[str, Any], layout: Layout, updates: int) -> None:
        spec = spec_of(model, algorithm, layout, updates, slices=SLICES)
        batch, rollouts = near_policy(plain_trainer(spec), spec)
        engine = PlainEngine(spec, ranks)
        reference = engine.frozen_copy(disturb) if spec.algorithm.kl_loss_coef else None
        mini_batches = lay_out(plan_share(batch, spec, ranks.replica, ranks.replicas), rollouts, spec, layout)
        outcome = Learner(engine, ranks, spec, reference).train(mini_batches, lambda _: LR)
        of_both = outcome.sums.fields(updates), outcome.gap.fields()
        found.append((algorithm, astuple(layout), updates, engine.gradients, outcome.sums.loss, of_both))

    step()
    return found


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts collective calls by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def wide(ranks: Ranks, model: Path) -> Any:
    """Float32, ZeRO-3, at the real model's widths, of whose nine heads no two ranks get as many.

    The gradient of each layout, and of the first once more with activation checkpointing; how many micro-batches each
    replica had then, and the collective calls of each rank; and what `_by_flash` finds.
    """
    spec = real_spec(model, zero_stage=3, sequence_parallel=SLICES, max_tokens_per_micro_batch=16)
    engine = GradientProbe(spec, sequence=ranks.sequence)
    batch, rollouts = make_batch(spec)
    learner = Learner(engine, ranks, spec)
    plan = plan_share(batch, spec, ranks.replica, ranks.replicas)
    for layout in WIDE_LAYOUTS:
        learner.train(lay_out(plan, rollouts, spec, layout), lambda _: 0.0)  # no weight changes
    engine.policy.body.activation_checkpointing_enable({"use_reentrant": False})
    mini_batches = lay_out(plan, rollouts, spec, WIDE_LAYOUTS[0])
    with Collectives() as counted:
        learner.train(mini_batches, lambda _: 0.0)
    return {
        "gradients": engine.gradients,
        "micro-batches": ranks.gather_replicas([len(found) for found in mini_batches]),
        "collectives": ranks.gather(dict(counted.calls)),
        **_by_flash(engine, [r for g in plan[0] for r in make_responses(g, rollouts[g.n], spec)], ranks),
    }


def _by_flash(engine: GradientProbe, responses: list[Response], ranks: Ranks) -> dict[str, Any]:
    """The log-probs of one row, by flash-attention and block by block, and the heads of each rank."""
    blocks, flash = (
        micro_batch([responses], PackingLimits(512, False, 64, single, mask_length=8, slices=SLICES))
        for single in (False, True)
    )
    expected = engine.logprobs(blocks)
    with flash_attention(engine.policy.body) as kernel:
        found = engine.logprobs(flash)
    return {"by flash": (found, expected), "heads": ranks.gather([call["heads"] for call in kernel.calls])}


def resumed(ranks: Ranks, model: Path, folder: Path) -> Any:
    """A checkpoint of ranks that share nothing, and the next batch by them and by those that share micro-batches."""
    spec = resizing.spec_of(model, 3)
    shared = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"sequence_parallel": SLICES})})
    written = resizing.write(folder / "undivided", spec, Ranks(ranks.rank, ranks.world_size))
    found = resizing.resume(folder / "undivided", shared, ranks, universal=False)
    return [{name: parts["master"] for name, parts in step.items()} for step in (written["next"], found["next"])]
