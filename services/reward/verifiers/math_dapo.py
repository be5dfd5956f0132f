"""`math_dapo`: the rule that DAPO was released with, fault for fault, so that published runs can be reproduced.

It is strict about form and lax about content: `34.` and `**34**` are wrong where 34 is right, `3 4` is right.
`tests/reward/test_math_dapo.py` holds the table of what it gets wrong. `math_dapo_boxed` is its strict boxed form.
"""

from __future__ import annotations

import re

from services.reward.verifiers.outcome import Outcome
from sluice.types import NO_ANSWER, ScoreItem

TAIL = 300
"""Characters at the end of the response that the rule looks at."""
BOXED_TAIL = 100

_ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)
_BOX = "\\boxed{"

# The order of both tables matters: what one entry leaves behind, a later one may match.
_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_DELETED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_REWRITTEN = (
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def verify(item: ScoreItem) -> Outcome:
    """+1 when the last `Answer:` of the response's end equals the ground truth, both normalised, else −1."""
    answers = _ANSWER.findall(item.response[-TAIL:])
    answer = normalise(answers[-1] if answers else NO_ANSWER)
    return _outcome(answer == normalise(item.ground_truth), answer)


def verify_boxed(item: ScoreItem) -> Outcome:
    """+1 when the last box of the response's end holds the ground truth, character for character, else −1."""
    answer = last_box(item.response[-BOXED_TAIL:])
    return _outcome(answer == item.ground_truth, answer)


def _outcome(correct: bool, answer: str) -> Outcome:
    return Outcome(acc=float(correct), score=1.0 if correct else -1.0, extracted=answer)


def last_box(text: str) -> str:
    """What is inside the last box of `text`; `[INVALID]` when there is none or its braces do not close."""
    start = text.rfind(_BOX)
    if start < 0:
        return NO_ANSWER
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0 and text[end] == "}":
            return text[start + len(_BOX) : end]
    return NO_ANSWER


def normalise(answer: str) -> str:
    """The form in which answers are compared; the order of its steps is the released rule's."""
    answer = answer.rsplit("=", maxsplit=1)[-1]
    for before, after in _REPLACED:
        answer = answer.replace(before, after)
    for expression in _DELETED:
        answer = answer.replace(expression, "")
    for pattern, form in _REWRITTEN:
        answer = pattern.sub(form, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()
