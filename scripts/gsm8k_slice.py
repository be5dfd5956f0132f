"""Turn the easiest rows of GSM8K's own train.jsonl into the schema that Sluice trains on (that of DAPO-Math-17k).

The easiest are those whose solution needs one calculation. Each prompt shows three of them worked, for a model of 135 M
parameters gets next to nothing right without an example, and a group without a right answer teaches nothing.

Usage: `python scripts/gsm8k_slice.py path/to/train.jsonl > configs/data/gsm8k_slice.jsonl`
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

WORKED_EXAMPLES = 3
_CALCULATION = re.compile(r"<<(.*?)>>")


class Problem(NamedTuple):
    """One row of GSM8K: its place in the file, the question, the calculations of the solution, the final number."""

    row: int
    question: str
    calculations: tuple[str, ...]
    truth: str


def read(number: int, line: str) -> Problem:
    """Raises ValueError when the solution has no number after `####`."""
    row = json.loads(line)
    solution, marker, truth = row["answer"].rpartition("####")
    if not marker or not truth.strip():
        raise ValueError(f"row {number}: the answer has no number after ####")
    calculations = tuple(_CALCULATION.findall(solution))
    return Problem(number, row["question"].strip(), calculations, truth.strip().replace(",", ""))


def worked(problem: Problem) -> str:
    return f"Question: {problem.question}\nAnswer: {'; '.join(problem.calculations)} #### {problem.truth}\n\n"


def convert(problem: Problem, examples: str) -> dict[str, object]:
    """One row: worked examples and the question as plain text, and the final number as ground truth."""
    return {
        "data_source": "gsm8k",
        "prompt": f"{examples}Question: {problem.question}\nAnswer:",
        "reward_model": {"ground_truth": problem.truth, "style": "rule"},
        "extra_info": {"index": problem.row, "split": "train"},
    }


def main(source: Path) -> None:
    with source.open(encoding="utf-8") as lines:
        problems = [read(number, line) for number, line in enumerate(lines)]
    easy = sorted((p for p in problems if len(p.calculations) == 1), key=lambda p: len(p.question))
    # Short questions whose answer is the calculation's result make the plainest examples.
    plain = [p for p in easy if p.calculations[0].endswith(f"={p.truth}")][:WORKED_EXAMPLES]
    examples = "".join(worked(p) for p in plain)
    for problem in easy:
        if problem not in plain:
            print(json.dumps(convert(problem, examples), ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
