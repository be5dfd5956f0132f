"""Every task of reasoning-gym is scored by the library, and none of its scorers runs an answer as Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import reasoning_gym  # type: ignore[import-untyped]  # the library has no types
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]  # the library has no types

from services.reward.verifiers.arithmetic import read_formula, read_value
from services.reward.verifiers.reasoning_gym import verify
from sluice.types import ScoreItem

MANY_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks that come without an answer, because many are right."""
NEEDS_PARTS = {"composite"}
SLOW = {"arc_agi", "rearc", "advanced_geometry"}
"""Seconds to make one entry of; their scorer is that of a grid, which others have too."""
TASKS = sorted(set(DATASETS) - NEEDS_PARTS - SLOW)


def entry(task: str, seed: int = 1) -> dict[str, object]:
    made: dict[str, object] = reasoning_gym.create_dataset(task, size=1, seed=seed)[0]
    return made


def item(made: dict[str, object], answer: str) -> ScoreItem:
    # As a row of a data set: through JSON.
    extra = json.dumps({"question": made["question"], "metadata": made["metadata"]}, default=str)
    return ScoreItem("1", "reasoning_gym", "p", f"So.\n<answer>{answer}</answer>", str(made["answer"]), extra, 1)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_scores_its_own_answer_in_full_and_another_one_not(task: str) -> None:
    made = entry(task)
    if task not in MANY_ANSWERS:
        assert verify(item(made, str(made["answer"]))).acc == 1.0
    wrong = verify(item(made, "?!"))
    assert wrong.acc == 0.0
    assert 0.0 <= wrong.score < 1.0


EVALUATING = (
    *("string_insertion", "spiral_matrix", "number_sorting", "binary_matrix", "n_queens", "bitwise_arithmetic"),
    *("countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"),
)


@pytest.mark.parametrize("task", EVALUATING)
def test_an_answer_that_is_code_is_never_run(task: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = entry(task)
    for attack in (f"open('{mark}', 'w')", f"[open('{mark}', 'w')]", f"__import__('os').system('touch {mark}')"):
        assert verify(item(made, attack)).acc == 0.0
    assert not mark.exists()


def test_formulas_are_computed_as_the_library_would() -> None:
    assert read_formula("2*(3+4)-6/2") == 11
    assert str(read_formula("x**2 + 2*x*sin(x)")) == "x**2 + 2*x*sin(x)"
    assert read_value("[[1, 2], ['a', 'b']]") == [[1, 2], ["a", "b"]]
    assert read_value("(0x10 + 3) << 2") == 76


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9+*/().,\[\]'_ -]{1,30}", fullmatch=True))
@settings(max_examples=200, deadline=None)
def test_no_text_makes_the_readers_do_anything_but_compute_or_refuse(text: str) -> None:
    for read in (read_formula, read_value):
        try:
            read(text[:12])
        except (ValueError, TypeError, ArithmeticError, AttributeError):
            continue


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("{", "not JSON"),
        ("{}", "source_dataset"),
        ('{"metadata": {"source_dataset": "guess"}}', "'guess' not registered"),
    ],
)
def test_a_row_without_an_entry_of_a_known_task_is_an_error(extra: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verify(ScoreItem("1", "reasoning_gym", "p", "<answer>1</answer>", "1", extra, 1))
