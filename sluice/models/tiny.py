"""Make a character-level Llama that adds two digits, and errs often enough to be worth training.

Supervised training on `a+b=` answered by the sum and a newline, with a share of the answers replaced by random
numbers: the model then samples the right sum about half the time, so nearly every group has right and wrong answers.
"""

import argparse
from pathlib import Path

from sluice.models.directory import build_once


def make(target: Path, seed: int = 0) -> bool:
    """Write the model into `target` unless it is there; returns True when this call built it.

    The same seed gives the same weights on the same machine.
    """
    recipe: dict[str, str | int] = {"maker": "tiny", "seed": seed, "revision": 1}
    return build_once(target, recipe, lambda staging: _build(staging, seed))


def _build(staging: Path, seed: int) -> None:
    # Imported here because torch and transformers take seconds, which a model that is already there should not cost.
    from sluice.models.tiny_training import write_model

    write_model(staging, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and write the tiny addition model.")
    parser.add_argument("--out", type=Path, required=True, help="the model directory to make")
    parser.add_argument("--seed", type=int, default=0, help="names the weights (default 0)")
    arguments = parser.parse_args()
    print(f"{arguments.out}: {'made' if make(arguments.out, arguments.seed) else 'already complete'}")


if __name__ == "__main__":
    main()
