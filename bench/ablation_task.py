"""What the ablation trains: character-level arithmetic, with a pause of any length before the answer.

Made like the tiny model, with two differences that give every rung of the ladder something to act on. Before its answer
a response has a geometric number of spaces, so that some are cut at the limit, and long ones are long without being
better. Half of the prompts are products, whose answers are mostly random in the supervised data: groups of them are
often all wrong, and sums become all right, so that dynamic sampling has something to drop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sluice.models.arithmetic import write_rows
from sluice.models.directory import build_once

PROMPTS_FILE = "prompts.jsonl"
PROMPT_LENGTH = 4
REVISION = 1


@dataclass(frozen=True, slots=True)
class Task:
    """How the supervised data are drawn."""

    pause: float = 0.85
    """Chance of each further space before the answer."""
    spoilt_sums: float = 0.3
    """Share of sums whose answer is a random number."""
    spoilt_products: float = 0.75


def make(folder: Path, task: Task) -> None:
    """Write model, tokenizer and prompts into `folder`, unless they are there; half a CPU-minute, always the same."""
    recipe: Mapping[str, str | int] = {"maker": "ablation", "revision": REVISION, "task": str(asdict(task))}

    def build(staging: Path) -> None:
        # Imported here because torch takes seconds, which a model that is there already should not cost.
        from bench.ablation_model import write_model

        write_model(staging, task, problems())
        write_rows([_row(index, *problem) for index, problem in enumerate(problems())], staging / PROMPTS_FILE)

    build_once(folder, recipe, build)


def problems() -> list[tuple[str, int]]:
    """Every sum and every product of two digits, in turns: the sums are the even ones."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    return [problem for a, b in pairs for problem in ((f"{a}+{b}=", a + b), (f"{a}*{b}=", a * b))]


def _row(index: int, prompt: str, answer: int) -> dict[str, Any]:
    return {
        "data_source": "exact",
        "prompt": prompt,
        "reward_model": {"ground_truth": str(answer), "style": "rule"},
        "extra_info": {"index": index},
    }
