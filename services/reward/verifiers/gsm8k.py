"""`gsm8k`: the response ends in a number.

Policy. When the response has a `####`, its answer is the first number after the last `####`, and there is none when no
number follows. Without a `####` the answer is the last number of the response. Numbers are compared by value: thousands
separators, a dollar sign, trailing zeros and the unicode minus do not count; `1,2` is two numbers; fractions,
exponents and digits of other scripts are not read. The ground truth is read by the same rule, so the data set's full
solution text may stand there.
"""

from __future__ import annotations

import re
from decimal import Decimal

from services.reward.verifiers.outcome import Outcome
from sluice.types import NO_ANSWER, ScoreItem

MARKER = "####"

# A minus right after a word, a digit or a bracket is a subtraction or a hyphen, not a sign.
_NUMBER = re.compile(r"(?:(?<![\w)\]])[-−])?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")


def verify(item: ScoreItem) -> Outcome:
    """1 when the answer's value is that of the ground truth, else 0.

    Raises:
        ValueError: the ground truth has no number.
    """
    truth = check_truth(item.ground_truth)
    answer = extract(item.response)
    correct = float(answer is not None and Decimal(answer) == Decimal(truth))
    return Outcome(acc=correct, score=correct, extracted=NO_ANSWER if answer is None else answer)


def check_truth(truth: str) -> str:
    """The number of a ground truth.

    Raises:
        ValueError: it has none.
    """
    number = extract(truth)
    if number is None:
        raise ValueError(f"ground truth {truth[:80]!r} has no number")
    return number


def extract(text: str) -> str | None:
    """The answer's number in plain digits, or None."""
    _, marker, tail = text.rpartition(MARKER)
    if marker:
        match = _NUMBER.search(tail)
        found = match.group() if match else None
    else:
        numbers = _NUMBER.findall(tail)
        found = numbers[-1] if numbers else None
    return None if found is None else found.replace(",", "").replace("$", "").replace("−", "-")
