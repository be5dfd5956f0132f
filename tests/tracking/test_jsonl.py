"""A run is tracked once, whole and in order, whenever the follower starts and however often it dies."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sluice.types import RunState
from tests.tracking.conftest import ROOT, ForgetfulShelf, TrackedRun


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def numbers(file: Path) -> list[int]:
    return [line["step"] for line in lines(file)[1:]]


def test_a_finished_run_is_caught_up_with_its_config_first(run: TrackedRun, tmp_path: Path) -> None:
    run.steps(0, 1, 2)
    run.end()
    file = tmp_path / "deep" / "steps.jsonl"
    assert run.track(f"jsonl:{file}") == 0
    first, *steps = lines(file)
    assert (first["run"], first["name"]) == (run.id, run.id)
    assert (first["config"]["run_id"], first["config"]["trainer"]["total_steps"]) == (run.id, 20)
    assert [step["step"] for step in steps] == [1, 2, 3]
    expected = {
        "version": "v2.1",
        "time": "2026-01-02T00:00:00+00:00",
        "reward/mean": 0.01,
        "sampling/keep_rate": 0.75,
        "sampling/dropped/all_correct": 3,
        "staleness/groups/1": 12,
        "length/truncated_share": 0.25,
        "length/truncated_share_kept": 0.5,
        "actor/loss": 0.1,
        "timing/wait_seconds": 1.5,
    }
    assert {name: steps[1][name] for name in expected} == expected
    assert "sampling/tokens_per_second" not in steps[1]  # nobody measured it


def test_evaluations_are_lines_of_their_own_each_once_and_at_the_version_that_they_are_of(
    run: TrackedRun, tmp_path: Path
) -> None:
    file = tmp_path / "steps.jsonl"
    run.evaluate(0, 0.25)
    run.steps(0, 1, 2)
    run.evaluate(2, 0.5)  # its results come while the training goes on
    run.end()
    assert run.track(f"jsonl:{file}", options=("--verl-names",)) == 0
    assert run.track(f"jsonl:{file}") == 0
    found = [line for line in lines(file) if "evaluation" in line]
    assert [(line["evaluation"], line["version"], line["evaluation/sums/avg@8"]) for line in found] == [
        (0, "v0.1", 0.25),
        (2, "v2.1", 0.5),
    ]
    assert found[1]["val-core/sums/acc/mean@8"] == 0.5
    assert [line["step"] for line in lines(file) if "step" in line] == [1, 2, 3]


def test_a_run_is_followed_while_it_trains(run: TrackedRun, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"

    def train() -> None:
        for step in range(3):
            run.steps(step)
            wait_for(file, step + 1)
        run.end()

    training = threading.Thread(target=train)
    training.start()
    assert run.track(f"jsonl:{file}") == 0
    training.join()
    assert numbers(file) == [1, 2, 3]


def test_a_last_step_that_is_told_after_the_end_is_tracked(
    run: TrackedRun, shelf: ForgetfulShelf, tmp_path: Path
) -> None:
    run.steps(0)
    run.batch(1)
    shelf.change(run.id, training_steps=2)
    run.end()
    late = threading.Timer(0.5, run.train, args=(1,))
    late.start()
    assert run.track(f"jsonl:{tmp_path}/") == 0
    late.join()
    last = lines(tmp_path / f"{run.id}.jsonl")[-1]
    assert (last["step"], last["reward/mean"], last["actor/loss"]) == (2, 0.01, 0.1)


def test_tracking_again_writes_nothing_twice_and_mends_a_line_that_was_cut_short(
    run: TrackedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.steps(0, 1, 2)
    run.end()
    file = tmp_path / "steps.jsonl"
    assert run.track(f"jsonl:{file}") == 0
    whole = file.read_bytes()
    assert run.track(f"jsonl:{file}") == 0
    assert file.read_bytes() == whole
    file.write_bytes(whole[:-20])
    capsys.readouterr()
    assert run.track(f"jsonl:{file}") == 0
    assert f"{run.id}: to {file}, from step 3\n" in capsys.readouterr().out
    assert file.read_bytes() == whole


def test_a_follower_that_is_killed_goes_on_where_it_was(run: TrackedRun, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    command = [sys.executable, "-m", "sluice.cli", "track", run.id, "--at", run.url, "--to", f"jsonl:{file}"]
    killed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    run.steps(0, 1)
    wait_for(file, 2)
    killed.kill()
    killed.wait()
    run.steps(2, 3)
    run.end()
    assert run.track(f"jsonl:{file}") == 0
    assert numbers(file) == [1, 2, 3, 4]


def test_where_events_are_lost_the_ledger_still_knows_the_batches(
    run: TrackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.tracking.follow.LAST_STEP_SECONDS", 0.3)
    run.steps(0, 1, 2, 3)
    run.lose_events("step", 0, 3)
    run.lose_events("batch", 2)
    run.end()
    file = tmp_path / "steps.jsonl"
    assert run.track(f"jsonl:{file}") == 0
    steps = lines(file)[1:]
    assert [(step["step"], step["reward/mean"], step.get("actor/loss")) for step in steps] == [
        (1, 0.0, None),
        (2, 0.01, 0.1),
        (3, 0.02, 0.2),
        (4, 0.03, None),
    ]


def test_a_step_that_is_trained_again_after_a_restart_stays_as_it_was_tracked(run: TrackedRun, tmp_path: Path) -> None:
    run.steps(0, 1)
    run.train(1, loss=9.0)
    run.batch(2)
    run.train(2)
    run.end()
    file = tmp_path / "steps.jsonl"
    assert run.track(f"jsonl:{file}") == 0
    assert [(step["step"], step["actor/loss"]) for step in lines(file)[1:]] == [(1, 0.0), (2, 0.1), (3, 0.2)]


def test_verls_names_are_written_beside_ours_when_asked_for(run: TrackedRun, tmp_path: Path) -> None:
    run.steps(0)
    run.end(RunState.FAILED)
    options = ("--verl-names", "--name", "baseline")
    assert run.track(f"jsonl:{tmp_path}/", options=options) == 0
    first, step = lines(tmp_path / "baseline.jsonl")
    assert first["name"] == "baseline"
    assert (step["actor/pg_clipfrac"], step["actor/clip_fraction_high"]) == (0.375, 0.25)
    assert step["perf/time_per_step"] == step["timing/total_seconds"] == 4.0
    assert "actor/pg_loss" not in step  # the event did not have it


def test_a_file_of_another_run_is_left_alone(
    run: TrackedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in ('{"run": "other-1"}\n', "step,reward\n"):
        file = tmp_path / "other.jsonl"
        file.write_text(content, encoding="utf-8")
        assert run.track(f"jsonl:{file}") == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert file.read_text(encoding="utf-8") == content


def test_a_file_has_one_writer(run: TrackedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.jsonl"
    with file.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert run.track(f"jsonl:{file}") == 2
    assert capsys.readouterr().err == f"sluice: {file}: is written by another `sluice track`\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "csv:x"], "--to csv:x: must be jsonl:PATH, tensorboard:FOLDER or wandb:[ENTITY/]PROJECT"),
        (["--to", "wandb"], "--to wandb: must be jsonl:PATH, tensorboard:FOLDER or wandb:[ENTITY/]PROJECT"),
        ([], "--to: say where to track the run: jsonl:PATH, tensorboard:FOLDER or wandb:[ENTITY/]PROJECT"),
        (["--to", "jsonl:README.md/x"], "jsonl:README.md/x: File exists"),
        (["--to", "jsonl:new.jsonl", "--all"], "--all tracks every run under its id: leave out RUN"),
    ],
)
def test_what_cannot_be_tracked_is_one_line(
    run: TrackedRun, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.track(options=tuple(arguments)) == 2
    assert capsys.readouterr().err == f"sluice: {said}\n"


def wait_for(file: Path, steps: int) -> None:
    """Until `file` has so many steps."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") > steps:
            return
        time.sleep(0.02)
    raise TimeoutError(f"{file} does not have {steps} steps after 20 s")
