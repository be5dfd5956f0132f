"""`math`: hardened judging of mathematical answers, by the policy written in `docs/verifiers.md`."""

from __future__ import annotations

from functools import lru_cache

from services.reward.verifiers.cleaning import clean
from services.reward.verifiers.extraction import MAX_ANSWER, answer_of
from services.reward.verifiers.math.algebra import UnreadableError, read_expression
from services.reward.verifiers.math.equality import same_answer
from services.reward.verifiers.math.structure import Answer, Formula, Matrix, Parts, read_answer
from services.reward.verifiers.outcome import Outcome
from sluice.types import NO_ANSWER, ScoreItem

_WARMING = (
    *(
        "34",
        "0.75",
        "\\frac{3}{4}",
        "x^2 + 2x - 8",
        "(x+4)(x-2)",
        "2\\sqrt{3} + 1",
        "\\frac{\\pi}{4}",
        "e^{3x} - \\ln 2",
    ),
    *("(1, 2)", "[0, \\infty)", "\\{1, 2\\}", "y = 2x + 1", "x \\geq 3", "3 + 4i", "\\sin^2 \\theta", "2^{n-1}", "n!"),
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
)


def verify(item: ScoreItem) -> Outcome:
    """1 when the response's answer equals the ground truth by the policy, else 0.

    Raises:
        ValueError: the ground truth is empty or cannot be read.
    """
    truth = read_truth(item.ground_truth)
    found = answer_of(item.response)
    answer = "" if found is None else clean(found)
    if not answer:
        return Outcome(acc=0.0, score=0.0, extracted=NO_ANSWER)
    correct = float(same_answer(truth, read_answer(answer)))
    return Outcome(acc=correct, score=correct, extracted=answer)


def warm_up() -> None:
    """Judge an answer of each kind: the grammar learns as it reads, and what it learns before a fork stays learnt."""
    for truth, answer in zip(_WARMING, _WARMING[1:] + _WARMING[:1], strict=True):
        verify(ScoreItem("", "math", "", f"Answer: ${answer}$", truth, "{}", 0))


@lru_cache(maxsize=512)
def read_truth(text: str) -> Answer:
    """The ground truth as an answer; a group's rollouts share theirs.

    Raises:
        ValueError: it is empty, or is neither a number, words, a structure of these nor an expression.
    """
    cleaned = clean(text[:MAX_ANSWER])
    if not cleaned or len(text) > MAX_ANSWER:
        raise ValueError(f"ground truth {text[:80]!r} is empty or longer than {MAX_ANSWER} characters")
    truth = read_answer(cleaned)
    _check(truth, text)
    return truth


def _check(answer: Answer, text: str) -> None:
    value = answer.value
    if isinstance(value, Formula):
        try:
            read_expression(answer.text)
        except UnreadableError as error:
            raise ValueError(f"ground truth {text[:80]!r} cannot be read: {error}") from None
    parts = value.items if isinstance(value, Parts) else ()
    cells = [cell for row in value.rows for cell in row] if isinstance(value, Matrix) else ()
    for part in (*parts, *cells):
        _check(part, text)
