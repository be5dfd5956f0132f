"""`regex`: the ground truth is a pattern that the response must match somewhere; anchors and `(?i)` are the pattern's.

White space around the response and the end tokens that close it do not count. A pattern that backtracks for ever costs
its own time limit. What it matched, or its group `answer`, is the extracted answer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from services.reward.verifiers.exact import strip_end
from services.reward.verifiers.outcome import Outcome
from sluice.types import NO_ANSWER, ScoreItem


def verify(item: ScoreItem) -> Outcome:
    """1 when the response matches, else 0.

    Raises:
        ValueError: the ground truth is no pattern.
    """
    match = compiled(item.ground_truth).search(strip_end(item.response))
    if match is None:
        return Outcome(acc=0.0, score=0.0, extracted=NO_ANSWER)
    named = match.groupdict().get("answer")
    return Outcome(acc=1.0, score=1.0, extracted=match.group() if named is None else named)


@lru_cache(maxsize=512)
def compiled(truth: str) -> re.Pattern[str]:
    """The pattern of a ground truth.

    Raises:
        ValueError: it is no pattern, or an empty one, which everything matches.
    """
    if not truth.strip():
        raise ValueError("ground truth is an empty pattern: every response would match it")
    try:
        return re.compile(truth)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"ground truth {truth[:80]!r} is no regular expression: {error}") from None
