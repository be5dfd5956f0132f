"""The same step by the trainer and by the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.trainer.fetching import plan_share
from services.trainer.learner import Learner, Outcome
from services.trainer.ranks import Ranks
from tests.trainer.layouts import LR, Layout, disturb, lay_out, near_policy, plain_trainer, spec_of
from tests.trainer.plain_engine import PlainEngine
from tests.trainer.reference import PlainUpdate, distance

SAME = 1e-10
"""Relative difference of gradients, in float64."""


def both(
    model: Path, algorithm: dict[str, Any], layout: Layout, updates: int = 1, epochs: int = 1
) -> tuple[PlainEngine, Outcome, list[PlainUpdate]]:
    """One rank's engine and outcome, and the reference's updates."""
    spec = spec_of(model, algorithm, layout, updates, epochs)
    plain = plain_trainer(spec)
    batch, rollouts = near_policy(plain, spec)
    engine = PlainEngine(spec, Ranks(0, 1))
    reference = engine.frozen_copy(disturb) if spec.algorithm.kl_loss_coef else None
    mini_batches = lay_out(plan_share(batch, spec, 0, 1), rollouts, spec, layout)
    outcome = Learner(engine, Ranks(0, 1), spec, reference).train(mini_batches, lambda _: LR)
    return engine, outcome, plain.step(batch, rollouts, LR)


def compare(engine: PlainEngine, outcome: Outcome, expected: list[PlainUpdate]) -> None:
    """Fails if an update is not the reference's."""
    assert outcome.updates == len(expected)
    for found, update in zip(engine.gradients, expected, strict=True):
        assert distance(found, update.gradient) < SAME
    assert outcome.sums.loss == pytest.approx(sum(u.loss for u in expected), rel=1e-9, abs=1e-12)
