"""What the simulated engine answers: right or wrong sums, decided by the prompt's seed alone."""

from __future__ import annotations

import json
import random
import re
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

SUM = re.compile(r"(\d+)\s*([+*])\s*(\d+)")
REMEMBERED_PROMPTS = 4096
LOGPROB = -0.25
"""Of every token: the numbers mean nothing, they only have to be there."""


def outcomes(seed: int, keep_rate: float, count: int) -> list[bool]:
    """Which of `count` responses are right: some with probability `keep_rate`, else all of them or none."""
    rng = random.Random(f"outcome/{seed}")
    if rng.random() < keep_rate and count > 1:
        return [i % 2 == 0 for i in range(count)]
    return [rng.random() < 0.5] * count


class Responder:
    """Answers the sums of a prompt in the model's own tokens."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.answers = lru_cache(REMEMBERED_PROMPTS)(self._answers)
        """A wrong answer to a prompt, and the right one."""
        self._end = int(json.loads((model / "config.json").read_text(encoding="utf-8"))["eos_token_id"])

    def _answers(self, prompt: tuple[int, ...]) -> tuple[list[int], list[int]]:
        found = SUM.search(self._tokenizer.decode(prompt))
        a, sign, b = (int(found[1]), found[2], int(found[3])) if found else (0, "+", 0)
        right = a + b if sign == "+" else a * b
        return self._ids(right + 1), self._ids(right)

    def _ids(self, answer: int) -> list[int]:
        return list(self._tokenizer.encode(str(answer), add_special_tokens=False).ids)

    def padded(self, answer: list[int], length: int) -> list[int]:
        """The answer, then end tokens up to `length`: verifiers do not see those."""
        return answer + [self._end] * (length - len(answer))
