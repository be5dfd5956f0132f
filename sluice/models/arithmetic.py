"""Write the arithmetic data sets in DAPO's schema, one JSON row a line.

`tiny` has the 100 one-digit additions as the tiny model reads them (`3+4=`); `demo` has one-digit additions and
multiplications as plain text with one worked example, the form in which SmolLM2-135M is right about half the time.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORKED_EXAMPLE = "2 + 2 = 4\n"


def tiny_rows() -> list[dict[str, Any]]:
    """Every a+b with a, b in 0..9, as `a+b=`."""
    pairs = ((a, b) for a in range(10) for b in range(10))
    return [_row(index, f"{a}+{b}=", a + b) for index, (a, b) in enumerate(pairs)]


def demo_rows() -> list[dict[str, Any]]:
    """Every a+b with a, b in 1..9, then every a*b with a, b in 2..9, after one worked example."""
    return [_row(index, WORKED_EXAMPLE + task, answer) for index, (task, answer) in enumerate(_demo_tasks())]


def _demo_tasks() -> Iterator[tuple[str, int]]:
    for a in range(1, 10):
        for b in range(1, 10):
            yield f"{a} + {b} =", a + b
    for a in range(2, 10):
        for b in range(2, 10):
            yield f"{a} * {b} =", a * b


def _row(index: int, prompt: str, answer: int) -> dict[str, Any]:
    return {
        "data_source": "exact",
        "prompt": prompt,
        "reward_model": {"ground_truth": str(answer), "style": "rule"},
        "extra_info": {"index": index},
    }


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Write `rows` as JSON lines in UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an arithmetic data set as JSON lines in DAPO's schema.")
    parser.add_argument("--form", choices=("tiny", "demo"), required=True, help="whose prompt form to write")
    parser.add_argument("--out", type=Path, required=True, help="the JSON lines file to write")
    arguments = parser.parse_args()
    write_rows(tiny_rows() if arguments.form == "tiny" else demo_rows(), arguments.out)


if __name__ == "__main__":
    main()
