"""`sluice data`: what a run would train on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.cli.resolve import resolve
from sluice.data import load_prompts

GSM8K = [
    {"question": f"What is {i % 9} and {i % 7}?", "answer": f"<<{i}>>\n#### {i % 9 + i % 7}", "level": 1}
    for i in range(70)
]


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """The tiny run on a file in another schema, with seven exact copies."""
    file = tmp_path / "set.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    changes = [f'data.train_files=["{file}"]', "data.row_format=gsm8k", "data.max_prompt_length=64"]
    return [part for change in changes for part in ("--set", change)]


def test_stats_count_copies_sources_and_lengths(
    settings: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "lengths.png"
    assert main(["data", "stats", "configs/tiny.toml", "--plot", str(picture), *settings]) == 0
    out = capsys.readouterr().out
    assert "63 prompts" in out
    assert "█" in out
    counted = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in out.splitlines() if "│" in line}
    assert counted["exact copies left out"] == "7"
    assert counted["data source gsm8k"] == "63"
    assert picture.stat().st_size > 1000


def test_inspect_shows_prompts_in_the_order_of_issue(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", "configs/tiny.toml", "--rows", "3", *settings]) == 0
    out = capsys.readouterr().out
    assert out.count("--- issue ") == 3
    assert "What is " in out
    assert '{"level": 1}' in out


def test_a_prepared_file_gives_the_same_prompts_in_the_plain_schema(
    settings: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "prepared"
    assert main(["data", "prepare", "configs/tiny.toml", "--out", str(out), *settings]) == 0
    assert "63 prompts of 70 rows" in capsys.readouterr().out
    overrides = [value for value in settings if value != "--set"]
    before = load_prompts(resolve(Path("configs/tiny.toml"), overrides))
    plain = [f'data.train_files=["{out / "prompts.parquet"}"]', "data.max_prompt_length=64"]
    after = load_prompts(resolve(Path("configs/tiny.toml"), plain))
    assert after.fingerprint == before.fingerprint == json.loads((out / "manifest.json").read_text())["fingerprint"]


def test_a_faulty_row_is_one_line_on_standard_error(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", "configs/tiny.toml", *settings, "--set", "data.row_format=deepmath"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
