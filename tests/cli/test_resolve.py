"""A dry run prints a run file that is exactly the run, and what its numbers mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli import main
from sluice.cli.resolve import arithmetic, resolve
from sluice.config import load_run_spec

CONFIGS = sorted(Path(__file__).parents[2].joinpath("configs").glob("*.toml"))


@pytest.mark.parametrize("file", CONFIGS, ids=[file.name for file in CONFIGS])
def test_the_printed_run_file_is_the_same_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(file), "--dry-run"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert load_run_spec(printed) == load_run_spec(file)


@pytest.mark.parametrize("file", CONFIGS, ids=[file.name for file in CONFIGS])
def test_the_data_of_every_config_is_there(file: Path) -> None:
    for path in load_run_spec(file).data.train_files:
        assert Path(path).is_file(), path


def test_overrides_are_toml_values_or_plain_words() -> None:
    spec = resolve(
        Path("configs/demo.toml"),
        [
            "trainer.total_steps=3",
            "trainer.target_reward=none",
            "optim.lr = 2e-5",
            'rollout.stop_texts=["\\n", "."]',
            "weights.transport=grpc",
            'model.path="models/tiny"',
        ],
    )
    assert (spec.trainer.total_steps, spec.trainer.target_reward, spec.optim.lr) == (3, None, 2e-5)
    assert spec.rollout.stop_texts == ("\n", ".")
    assert (spec.weights.transport, spec.model.path) == ("grpc", "models/tiny")


def test_the_arithmetic_says_how_many_rollouts_a_step_takes() -> None:
    lines = dict(arithmetic(resolve(Path("configs/demo.toml"), ["trainer.updates_per_step=4"])))
    assert lines["a training step"] == "16 kept groups × 8 rollouts = 128 rollouts"
    assert lines["an optimizer update"] == "32 rollouts; 4 in a training step"
    assert lines["groups not yet trained"].startswith("at most 32 ")
    assert lines["tokens of a row"].startswith("at most 40 = 32 prompt + 8 response; at least 51 rows")


def test_a_run_of_one_step_has_no_more_groups_than_it_trains() -> None:
    lines = dict(arithmetic(resolve(Path("configs/demo.toml"), ["trainer.total_steps=1"])))
    assert lines["groups not yet trained"].startswith("at most 16 ")


def test_a_dry_run_names_files_that_are_not_here_yet_and_still_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "configs/tiny.toml", "--set", 'data.train_files=["absent.jsonl"]', "--dry-run"]
    assert main([*arguments, "--set", "model.path=models/absent"]) == 0
    errors = capsys.readouterr().err
    assert "data.train_files: absent.jsonl" in errors and "model.path = models/absent" in errors
