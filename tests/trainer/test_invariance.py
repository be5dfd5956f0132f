"""An update is the same whatever the algorithm, rows, micro-batches, their order, and checkpointing, in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.trainer import several_ranks
from tests.trainer.comparing import both, compare
from tests.trainer.layouts import LAYOUTS, Layout, algorithms


# Derandomised: what is tried is the same on every machine. Shrinking would take minutes, and a layout is small anyway.
@settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.generate])
@given(algorithms(), LAYOUTS, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_every_update_of_a_step_is_the_references_whatever_the_algorithm_and_the_layout(
    tiny_model: Path, algorithm: dict[str, Any], layout: Layout, updates: int, epochs: int
) -> None:
    compare(*both(tiny_model, algorithm, layout, updates, epochs))


def test_four_ranks_make_the_updates_of_the_reference(tiny_model: Path, four_ranks: dict[str, Any]) -> None:
    for algorithm, (gradients, loss, gap) in zip(several_ranks.ALGORITHMS, four_ranks["alone"], strict=True):
        engine, outcome, expected = both(tiny_model, algorithm, several_ranks.LAYOUT, updates=2, epochs=2)
        engine.gradients = gradients
        compare(engine, replace(outcome, sums=replace(outcome.sums, loss=loss)), expected)
        assert gap == pytest.approx(outcome.gap.fields(), rel=1e-9, abs=1e-12)
