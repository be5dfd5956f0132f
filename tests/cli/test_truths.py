"""`sluice data prepare` refuses ground truths that no verifier could judge by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.cli import main

TRUTHS = ["34", "\\frac{1}{2}", "\\frac{1}{", "\\int_0^1 x\\,dx"]


def test_unusable_ground_truths_are_refused_by_number_unless_they_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "set.jsonl", tmp_path / "prepared"
    rows = [
        {"prompt": f"{n}+1=", "reward_model": {"ground_truth": t}, "data_source": "math"} for n, t in enumerate(TRUTHS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["data", "prepare", "configs/tiny.toml", "--out", str(out), "--set", f'data.train_files=["{file}"]']
    command += ["--set", "reward.verifier=math"]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "2 of 4 ground truths" in message
    assert "prompt 2:" in message
    assert message.count("cannot be read") == 2
    assert not out.exists()
    assert main([*command, "--any-truth"]) == 0
    assert (out / "prompts.parquet").exists()
