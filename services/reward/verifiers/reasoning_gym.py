"""`reasoning_gym`: any task of that library, scored by the library itself.

The row's `extra_info` holds the entry: `metadata` as the library made it, and `question` where that is not the prompt.
`metadata.source_dataset` names the task. The answer is what the last `<answer>…</answer>` holds; without one it is
found by the rule for all verifiers, and where that finds none it is all that follows the thinking. `score` is the
library's, from 0 to 1; `acc` is 1 for a full score only.

One scorer is replaced, because it takes every answer for right (`_CORRECTED`). Some evaluate the answer as Python: they
get readers that compute the same values and execute nothing. Should one evaluate text all the same, that is an error
and no score.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import reasoning_gym.factory  # type: ignore[import-untyped]  # the library has no types
import sympy  # type: ignore[import-untyped]  # the library has no types

from services.reward.verifiers.arithmetic import read_formula, read_value
from services.reward.verifiers.evaluation import EvaluatedError, nothing_evaluated
from services.reward.verifiers.exact import strip_end
from services.reward.verifiers.extraction import after_thinking, answer_of
from services.reward.verifiers.outcome import Outcome
from sluice.types import NO_ANSWER, ScoreItem

Scorer = Callable[[str, dict[str, Any]], float]

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)

# Where the library hands an answer to a reader that executes it, by module and by the name it calls there.
_LITERALS = (
    *("algorithmic.string_insertion", "algorithmic.spiral_matrix", "algorithmic.number_sorting"),
    *("algorithmic.binary_matrix", "arithmetic.bitwise_arithmetic", "games.n_queens"),
)
_FORMULAS = {
    "games.countdown": "parse_expr",
    "games.puzzle24": "parse_expr",
    "algebra.simple_integration": "sympy",
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
}
_SYMPY = SimpleNamespace(**{**vars(sympy), "parse_expr": read_formula})


def _same_word(answer: str, entry: dict[str, Any]) -> float:
    return float(answer.strip().casefold() == str(entry["answer"]).strip().casefold())


# The library's own scorer takes any text at all for a yes.
_CORRECTED: dict[str, Scorer] = {"game_of_life_halting": _same_word}


def _disarm() -> None:
    for name in _LITERALS:
        importlib.import_module(f"reasoning_gym.{name}").__dict__["eval"] = read_value
    for name, reader in _FORMULAS.items():
        module = importlib.import_module(f"reasoning_gym.{name}")
        setattr(module, reader, read_formula if reader == "parse_expr" else _SYMPY)


_disarm()


def verify(item: ScoreItem) -> Outcome:
    """The library's score of the response's answer.

    Raises:
        ValueError: `extra_info` has no entry of a known task.
        EvaluatedError: the library was about to run the answer as Python.
    """
    entry = _entry(item)
    answer = _answer(item.response)
    if answer is None:
        return Outcome(acc=0.0, score=0.0, extracted=NO_ANSWER)
    score = _score(_scorer(entry["metadata"]["source_dataset"]), answer, entry)
    return Outcome(acc=float(score >= 1.0), score=score, extracted=answer)


def _score(scorer: Scorer, answer: str, entry: dict[str, Any]) -> float:
    """What the library gives. Some scorers raise for an answer that they cannot read: it is then wrong.

    Raises: whatever the scorer raises for the ground truth too, for then the entry is at fault.
    """
    with nothing_evaluated():
        try:
            return float(scorer(answer, entry))
        except (EvaluatedError, MemoryError):
            raise
        except Exception:  # there are a hundred scorers, and each reads answers in its own way
            scorer(entry["answer"], entry)
            return 0.0


def _answer(response: str) -> str | None:
    rest = after_thinking(response)
    if rest is None:
        return None
    tagged = _TAGGED.findall(rest)
    if tagged:
        return str(tagged[-1]).strip()
    return answer_of(response) or strip_end(rest) or None


def _entry(item: ScoreItem) -> dict[str, Any]:
    try:
        extra = json.loads(item.extra_info or "{}")
    except ValueError as error:
        raise ValueError(f"extra_info is not JSON: {error}") from None
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("source_dataset"), str):
        raise ValueError("extra_info has no metadata.source_dataset, which names the task of reasoning_gym")
    return {"question": extra.get("question", item.prompt), "answer": item.ground_truth, "metadata": metadata}


@lru_cache(maxsize=256)
def _scorer(task: str) -> Scorer:
    """Raises: ValueError: no task of that name."""
    if task in _CORRECTED:
        return _CORRECTED[task]
    scorer: Scorer = reasoning_gym.factory.get_score_answer_fn(task)
    return scorer
