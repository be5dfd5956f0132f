"""The benchmark of data preparation, on the tiny model and without the side that needs another environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.data_bench import COPIES

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.usefixtures("tiny_model")
def test_it_counts_what_is_left_of_both_files_and_prints_tables_for_the_results_page(tmp_path: Path) -> None:
    asked = ["--quick", "--without-datasets", "--markdown", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "bench/data_bench.py", *asked], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "data.json").read_text(encoding="utf-8"))["figures"]
    rows = {"Sluice, all different": 500, f"Sluice, {COPIES} copies of each": 500 // COPIES}
    assert {name: side["prompts"]["median"] for name, side in figures.items()} == rows
    lines = done.stdout.splitlines()
    assert lines[:2] == ["| | rows / s | rows / CPU-s | prompts | tokens |", "| --- | --- | --- | --- | --- |"]
    assert all(any(line.startswith(f"| {name} | ") for line in lines) for name in rows)
