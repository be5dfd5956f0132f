"""The comparison with TRL: fair turns, equal problems, and figures that say when they cannot be trusted."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from bench.against_trl import (
    TRL_ENVIRONMENT,
    doubts,
    figure,
    installer,
    last_figures,
    order,
    prepare_environment,
    problems,
    ratios,
)
from bench.trl_demo import Progress, first_good_step, summary
from sluice.local.stack import TORCH_ENVIRONMENT
from sluice.models.arithmetic import demo_rows

QUIET = {"load_at_start": 0.4}
BUSY = {"load_at_start": 1.7}


def measured(*turns: dict[str, Any], machine: dict[str, Any] = QUIET) -> dict[str, Any]:
    return {"machine": machine, "turns": [{"seed": 1 + i, "steps": 20, **turn} for i, turn in enumerate(turns)]}


def test_every_problem_given_to_trl_is_one_of_the_demos_with_the_same_answer() -> None:
    known = {row["prompt"]: row["reward_model"]["ground_truth"] for row in demo_rows()}
    drawn = problems(seed=1, count=2000)
    assert all(known[problem["prompt"]] == problem["answer"] for problem in drawn)
    assert {problem["prompt"] for problem in drawn} == set(known)
    assert 0.45 < sum("*" in problem["prompt"] for problem in drawn) / len(drawn) < 0.55


def test_the_same_seed_draws_the_same_problems_and_another_seed_others() -> None:
    assert problems(3, 16) == problems(3, 40)[:16]
    assert problems(3, 16) != problems(4, 16)


def test_rounds_alternate_who_begins_and_give_both_sides_the_same_seeds() -> None:
    assert list(order(["trl", "sluice"], rounds=2, seed=5)) == [("trl", 5), ("sluice", 5), ("sluice", 6), ("trl", 6)]
    assert list(order(["sluice"], rounds=2, seed=5)) == [("sluice", 5), ("sluice", 6)]


def test_a_reward_counts_as_reached_at_the_first_step_whose_last_five_average_it() -> None:
    rewards = [0.5, 0.9, 0.8, 0.9, 0.8, 0.85, 0.2]
    assert first_good_step(rewards) == 5
    assert first_good_step([1.0] * 4) is None
    assert first_good_step([]) is None


def test_seconds_are_counted_from_the_start_of_training_to_the_end_of_a_step() -> None:
    ends = list(accumulate([9.0] + [7.0] * 19))
    found = summary([0.5] * 2 + [0.9] * 18, ends)
    assert found["seconds_to_reward_085"] == ends[6]
    assert found["seconds_20_steps"] == 142.0
    assert found["seconds_per_step"][:3] == [9.0, 7.0, 7.0]
    assert (found["reward_first"], found["steps"]) == (0.5, 20)
    assert found["reward_last5_mean"] == pytest.approx(0.9)


def test_a_short_training_has_no_figure_for_twenty_steps() -> None:
    found = summary([0.5, 0.7], [3.0, 5.0])
    assert (found["seconds_20_steps"], found["seconds_to_reward_085"]) == (None, None)
    assert found["reward_last5_mean"] == pytest.approx(0.6)


def test_a_step_is_shown_with_its_seconds_since_training_began(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 10.0, 17.5])
    progress = Progress(2, lambda: next(times))
    progress.begin()
    progress.rewards.append(0.625)
    progress.end_step()
    assert capsys.readouterr().out.split() == ["step", "1/2", "7.5", "s", "reward", "0.625"]


def test_a_ratio_compares_medians_and_is_missing_when_a_turn_did_not_get_there() -> None:
    trl = measured(*({"seconds_20_steps": s, "seconds_to_reward_085": r} for s, r in [(140.0, 100.0), (160.0, None)]))
    sluice = measured({"seconds_20_steps": 75.0, "seconds_to_reward_085": 50.0})
    assert ratios({"trl": trl, "sluice": sluice}) == {"seconds_to_reward_085": None, "seconds_20_steps": 2.0}
    assert ratios({"trl": trl}) == {"seconds_to_reward_085": None, "seconds_20_steps": None}
    assert figure(trl, "seconds_20_steps") == 150.0


def test_figures_from_a_busy_machine_are_called_worthless() -> None:
    assert doubts({"trl": measured({}), "sluice": measured({})}) == []
    (doubt,) = doubts({"trl": measured({}, machine=BUSY), "sluice": measured({})})
    assert doubt.startswith("trl: load average at the start 1.7, above 1.0") and doubt.endswith("worthless")


def test_a_kept_side_that_ran_other_seeds_or_steps_is_pointed_out() -> None:
    assert doubts({"trl": measured({}), "sluice": measured({}, {})}) == [
        "the sides have not run the same seeds and steps"
    ]
    assert doubts({"trl": measured({}), "sluice": measured({"steps": 2})})


def test_no_last_figures_are_no_error(tmp_path: Path) -> None:
    assert last_figures(tmp_path / "none.json") == {}


def test_trl_gets_the_allocator_settings_of_sluices_own_processes() -> None:
    same = {name: value for name, value in TORCH_ENVIRONMENT.items() if name.startswith("MALLOC_")}
    assert same and same.items() <= TRL_ENVIRONMENT.items()


def test_pips_find_links_count_for_uv_and_torch_comes_without_cuda_when_there_are_none() -> None:
    command, environment = installer(Path("venv/bin/python"), {"PIP_FIND_LINKS": "wheels"})
    assert environment["UV_FIND_LINKS"] == "wheels"
    assert "--torch-backend" not in command
    command, environment = installer(Path("venv/bin/python"), {})
    assert command[-2:] == ["--torch-backend", "cpu"]


def test_an_environment_that_is_ready_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("bench.against_trl._call", lambda command, *_, **__: calls.append(command))
    prepare_environment(tmp_path)
    made = len(calls)
    prepare_environment(tmp_path)
    assert (made, len(calls)) == (2, 2)
    monkeypatch.setattr("bench.against_trl.REQUIREMENTS", ("trl==9",))
    prepare_environment(tmp_path)
    assert len(calls) == 4
