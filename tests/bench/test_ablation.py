"""The ablation's rungs, problems and figures, without training any of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bench.ablation_bench import LADDER, figures_at_fixed_steps, on_rung
from bench.ablation_plot import curves
from bench.ablation_task import problems
from sluice.config import RunSpec, load_run_spec
from sluice.views import BatchView, StepView, TrainingView

ROOT = Path(__file__).parent.parent.parent
CHANGES = [
    {("algorithm", "overlong_filtering")},
    {("algorithm", "clip_ratio_high")},
    {("reward", "overlong_buffer")},
    {("algorithm", "loss_agg_mode")},
    {("filter", "enable")},
]


def changed(one: RunSpec, other: RunSpec) -> set[tuple[str, str]]:
    before, after = one.model_dump(mode="json"), other.model_dump(mode="json")
    sections = [name for name, value in before.items() if isinstance(value, dict)]
    return {(name, key) for name in sections for key in before[name] if before[name][key] != after[name][key]}


def test_each_rung_on_the_small_run_differs_from_the_one_before_by_its_switch_alone() -> None:
    base = load_run_spec(ROOT / "configs" / "tiny.toml")
    rungs = [on_rung(base, load_run_spec(file), 8, 0) for file in sorted((ROOT / LADDER).glob("*.toml"))]
    assert [changed(before, after) for before, after in itertools.pairwise(rungs)] == CHANGES
    assert all(rung.trainer.total_steps == 8 and rung.filter.mode == "streaming" for rung in rungs)


def test_the_problems_are_all_sums_and_products_of_two_digits() -> None:
    found = dict(problems())
    assert len(found) == len(problems()) == 200
    assert (found["9+8="], found["9*8="], found["0*7="]) == (17, 72, 0)


def step_of(k: int, sampled: int, accuracy: float, length: float) -> StepView:
    batch = BatchView(step=k, sampled_groups=sampled, acc_mean=accuracy, keep_rate=0.5, response_length_mean=length)
    return StepView(step=k, batch=batch, training=TrainingView(step=k, entropy=1.0 + k))


def test_figures_are_means_over_sampled_groups_of_the_steps_up_to_a_fixed_one() -> None:
    steps = [step_of(k, sampled=10 if k < 11 else 30, accuracy=k / 12, length=5.0) for k in range(12)]
    found = figures_at_fixed_steps(steps)
    assert list(found) == [1, 2, 4, 6, 8, 10, 12]
    assert (found[1]["accuracy"], found[1]["entropy"], found[1]["groups"]) == (0.0, 1.0, 10.0)
    last = sum(10 * k / 12 for k in (7, 8, 9, 10)) + 30 * 11 / 12
    assert found[12]["accuracy"] == pytest.approx(last / 70)
    assert (found[12]["entropy"], found[12]["groups"], found[12]["length"]) == (10.0, 140.0, 5.0)


def test_the_picture_has_a_curve_for_each_rung_in_the_order_of_its_steps() -> None:
    spread = {"mean": 0.2, "min": 0.1, "max": 0.3}
    rows = {f"1_grpo, step {k}": {"accuracy": spread} for k in (1, 30)}
    assert curves(rows, "accuracy") == {"1 grpo": [(1, spread), (30, spread)]}
