"""Turn rows of GSM8K's own train.jsonl into the schema that Sluice trains on (that of DAPO-Math-17k).

Usage: `python scripts/gsm8k_slice.py path/to/train.jsonl 512 > configs/data/gsm8k_slice.jsonl`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

INSTRUCTION = 'Think step by step. End with a line that has "#### " and the answer as a plain number.'


def convert(index: int, question: str, answer: str) -> dict[str, object]:
    """One row: the chat message, and as ground truth the number after the last `####`."""
    _, marker, truth = answer.rpartition("####")
    if not marker or not truth.strip():
        raise ValueError(f"row {index}: the answer has no number after ####")
    return {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": f"{question.strip()}\n\n{INSTRUCTION}"}],
        "reward_model": {"ground_truth": truth.strip().replace(",", ""), "style": "rule"},
        "extra_info": {"index": index, "split": "train"},
    }


def main(source: Path, count: int) -> None:
    with source.open(encoding="utf-8") as lines:
        for index, line in zip(range(count), lines, strict=False):
            row = json.loads(line)
            print(json.dumps(convert(index, row["question"], row["answer"]), ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
