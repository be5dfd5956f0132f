"""What TensorBoard reads back from a tracked run's event files."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.tracking.target import library
from tests.tracking.conftest import TrackedRun


def read(folder: Path) -> Any:
    """The folder of a run as TensorBoard loads it."""
    events = library("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 6)) for event in read(folder).Scalars(tag)]


def test_scalars_come_by_training_step_with_the_time_of_the_run(run: TrackedRun, tmp_path: Path) -> None:
    run.steps(0, 1, 2)
    run.end()
    assert run.track(f"tensorboard:{tmp_path}", options=("--name", "baseline")) == 0
    found = read(tmp_path / "baseline")
    assert {"reward/mean", "actor/loss", "sampling/dropped/all_wrong", "timing/wait_seconds"} <= set(
        found.Tags()["scalars"]
    )
    assert scalars(tmp_path / "baseline", "actor/loss") == [(1, 0.0), (2, 0.1), (3, 0.2)]
    assert {event.wall_time for event in found.Scalars("actor/loss")} == {1767312000.0}  # NOW of the events


def test_evaluations_are_shown_at_the_version_that_they_are_of(run: TrackedRun, tmp_path: Path) -> None:
    run.evaluate(0, 0.25)
    run.steps(0, 1, 2)
    run.evaluate(2, 0.5)
    run.end()
    for _ in range(2):
        assert run.track(f"tensorboard:{tmp_path}") == 0
    assert scalars(tmp_path / run.id, "evaluation/sums/avg@8") == [(0, 0.25), (2, 0.5)]
    assert [step for step, _ in scalars(tmp_path / run.id, "actor/loss")] == [1, 2, 3]


def test_the_config_is_there_as_hyperparameters(run: TrackedRun, tmp_path: Path) -> None:
    run.end()
    assert run.track(f"tensorboard:{tmp_path}") == 0
    metadata = read(tmp_path / run.id).SummaryMetadata("_hparams_/session_start_info")
    messages = library("tensorboard.plugins.hparams.plugin_data_pb2")
    start = messages.HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    assert start.group_name == run.id
    assert start.hparams["run_id"].string_value == run.id
    assert start.hparams["trainer.total_steps"].number_value == 20
    assert start.hparams["filter.enable"].bool_value is True
    assert "filter.max_generation_batches" not in start.hparams  # unset


def test_tracking_again_goes_on_after_the_last_whole_step(run: TrackedRun, tmp_path: Path) -> None:
    folder = tmp_path / run.id
    run.steps(0, 1, 2)
    run.end()
    assert run.track(f"tensorboard:{tmp_path}") == 0
    (first,) = folder.glob("events.*")
    first.write_bytes(first.read_bytes()[:-10])  # as a crash leaves it
    assert run.track(f"tensorboard:{tmp_path}") == 0
    assert scalars(folder, "actor/loss") == [(1, 0.0), (2, 0.1), (3, 0.2)]
    assert run.track(f"tensorboard:{tmp_path}") == 0
    assert scalars(folder, "actor/loss") == [(1, 0.0), (2, 0.1), (3, 0.2)]
    assert len(list(folder.glob("events.*"))) == 3


def test_a_folder_has_one_writer(run: TrackedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / run.id
    folder.mkdir()
    with (folder / ".sluice-track").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert run.track(f"tensorboard:{tmp_path}") == 2
    assert capsys.readouterr().err == f"sluice: {folder}: is written by another `sluice track`\n"


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_missing_library_is_one_line_that_names_the_extra(
    run: TrackedRun,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "path", [])  # nothing but what is loaded can be imported
    for name in [name for name in sys.modules if name.split(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    assert run.track(f"jsonl:{tmp_path}/", f"{kind}:{tmp_path}") == 2
    assert capsys.readouterr().err == (
        f"sluice: --to {kind}:{tmp_path}: the library {kind!r} is not installed; it comes with the extra `tracking`: "
        "pip install 'sluice[tracking]'\n"
    )
    assert list(tmp_path.iterdir()) == []  # nothing was begun
