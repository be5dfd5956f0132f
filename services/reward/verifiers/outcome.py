"""What a verifier's function may return, and the one form that the service makes of it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.types import NO_ANSWER

MAX_EXTRACTED = 512
"""Characters of an extracted answer that travel with the verdict: it is metadata, and a response may be all answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`acc` decides whether a group is kept, `score` is what is rewarded, `extracted` is the answer that was judged."""

    acc: float
    score: float
    extracted: str = ""


def to_outcome(value: object) -> Outcome:
    """Read a verifier's result: an Outcome, a bool, a number (also taken as `acc`), or a mapping with `score`.

    A mapping may add `acc` (default: the score) and `extracted`, where None says that no answer was found.

    Raises:
        ValueError: another type, a missing or unknown key, or a number that is not finite.
    """
    if isinstance(value, Outcome):
        return value
    if isinstance(value, Mapping):
        return _from_mapping(value)
    number = _finite("result", value)
    return Outcome(acc=number, score=number)


def _from_mapping(value: Mapping[object, object]) -> Outcome:
    unknown = sorted(str(key) for key in value if key not in ("score", "acc", "extracted"))
    if unknown or "score" not in value:
        raise ValueError(f"a verifier's dict has score, and may have acc and extracted; this one has {list(value)}")
    score = _finite("score", value["score"])
    acc = _finite("acc", value.get("acc", score))
    extracted = value.get("extracted", "")
    return Outcome(acc=acc, score=score, extracted=NO_ANSWER if extracted is None else str(extracted))


def _finite(what: str, value: object) -> float:
    if not isinstance(value, numbers.Real):
        raise ValueError(
            f"{what} is of type {type(value).__name__}; a verifier returns a bool, a number or a dict of them"
        )
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; it must be finite")
    return number
