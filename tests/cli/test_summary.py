"""The demo's figures: which clocks they use, and what they count."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.cli.plot import mean_staleness, plot_run
from sluice.cli.summary import Audit, summarize
from sluice.types import RunState
from sluice.views import BatchView, CountsView, RunView, StepView, VersionView

START = datetime(2026, 1, 2, tzinfo=UTC)
CLEAN = Audit(lost=0, trained_twice=0, staleness_violations=0, clean=True)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ended_run(steps: int) -> RunView:
    return RunView(
        id="demo-1",
        name="demo",
        state=RunState.SUCCEEDED,
        config_hash="0" * 16,
        created_at=at(-9),
        first_issue_at=at(0),
        finished_at=at(10 * steps + 3),
        training_steps=steps,
        total_steps=20,
        counts=CountsView(issued=400, trained=16 * steps, dropped={"all_wrong": 2, "all_correct": 5}),
    )


def steps_with(rewards: Sequence[float]) -> list[StepView]:
    return [StepView(step=k, batch=BatchView(step=k, reward_mean=r, tokens=500)) for k, r in enumerate(rewards)]


def versions_every_10_seconds(steps: int) -> list[VersionView]:
    return [
        VersionView(version=f"v{n}.1", uri="file:///w", manifest_hash="", chain="", published_at=at(10 * n))
        for n in range(steps + 1)
    ]


def test_the_good_reward_is_reached_when_the_step_that_completes_the_window_is_published() -> None:
    rewards = [0.5, 0.6, 0.8, 0.85, 0.9, 0.85, 0.85]  # the mean of steps 2 to 6 is exactly 0.85
    summary = summarize(ended_run(7), steps_with(rewards), versions_every_10_seconds(7), CLEAN)
    assert summary.seconds_to_reward_085 == 70
    assert summary.reward_first == 0.5
    assert summary.reward_last5_mean == pytest.approx(0.85)


def test_a_reward_that_is_never_reached_has_no_time() -> None:
    summary = summarize(ended_run(6), steps_with([0.8] * 6), versions_every_10_seconds(6), CLEAN)
    assert summary.seconds_to_reward_085 is None


def test_the_first_four_steps_cannot_reach_it() -> None:
    summary = summarize(ended_run(4), steps_with([1.0] * 4), versions_every_10_seconds(4), CLEAN)
    assert summary.seconds_to_reward_085 is None


def test_twenty_steps_have_a_time_only_when_there_were_twenty() -> None:
    full = summarize(ended_run(20), steps_with([0.5] * 20), versions_every_10_seconds(20), CLEAN)
    short = summarize(ended_run(19), steps_with([0.5] * 19), versions_every_10_seconds(19), CLEAN)
    assert (full.seconds_20_steps, short.seconds_20_steps) == (200, None)


def test_a_step_that_was_replayed_counts_when_it_was_first_done() -> None:
    again = [
        VersionView(version=f"v{n}.2", uri="", manifest_hash="", chain="", published_at=at(500 + n)) for n in range(6)
    ]
    summary = summarize(ended_run(5), steps_with([0.9] * 5), [*versions_every_10_seconds(5), *again], CLEAN)
    assert summary.seconds_to_reward_085 == 50


def test_tokens_a_second_are_all_sampled_tokens_over_the_time_of_training() -> None:
    summary = summarize(ended_run(5), steps_with([0.5] * 5), versions_every_10_seconds(5), CLEAN)
    assert summary.tokens_per_second == 5 * 500 / 50
    assert summary.wall_seconds == 53


def test_the_keys_are_those_that_the_documentation_names() -> None:
    summary = summarize(ended_run(5), steps_with([0.5] * 5), versions_every_10_seconds(5), CLEAN)
    assert list(dataclasses.asdict(summary)) == [
        "steps",
        "reward_first",
        "reward_last5_mean",
        "wall_seconds",
        "groups_issued",
        "dropped",
        "lost",
        "trained_twice",
        "staleness_violations",
        "tokens_per_second",
        "seconds_to_reward_085",
        "seconds_20_steps",
    ]


def test_a_run_that_never_began_has_a_summary_too() -> None:
    run = ended_run(0).model_copy(update={"first_issue_at": None, "state": RunState.FAILED})
    summary = summarize(run, [], [], CLEAN)
    assert (summary.steps, summary.reward_first, summary.wall_seconds) == (0, None, None)


def test_the_plot_is_a_picture_even_where_measurements_are_missing(tmp_path: Path) -> None:
    steps = [*steps_with([0.5, 0.7]), StepView(step=2, batch=BatchView(step=2))]
    plot_run(steps, "a run", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_staleness_is_averaged_over_the_groups_of_a_batch() -> None:
    assert mean_staleness(BatchView(step=0, staleness={"0": 4, "1": 12})) == 0.75
    assert mean_staleness(BatchView(step=0)) is None
