"""`multiple_choice`: the response picks one or several lettered options.

Policy. The answer is found as `docs/verifiers.md` says for all verifiers that look for one. It may be letters (`B`,
`(b)`, `B.`, `option B`, `A and C`), a letter with its option's text behind it (`B. four`), or that text alone when the
row's `extra_info` has `options` (a list, lettered from A, or an object from letter to text). The ground truth is read
by the same rule. Letters are compared as sets.
"""

from __future__ import annotations

import json
import re

from services.reward.verifiers.cleaning import clean
from services.reward.verifiers.extraction import answer_of
from services.reward.verifiers.outcome import Outcome
from sluice.types import NO_ANSWER, ScoreItem

_LETTERED = re.compile(r"[(\[]?([A-Za-z])[)\].:](?:\s.*)?", re.DOTALL)
_LETTERS = re.compile(
    r"(?:options?|choices?|选项?)?\s*([(\[]?\b[A-Za-z]\b[)\]]?(?:\s*(?:,|and|&|和|\s)\s*[(\[]?\b[A-Za-z]\b[)\]]?)*)"
)
_RUN = re.compile(r"[A-Z]{2,8}")


def verify(item: ScoreItem) -> Outcome:
    """1 when the response picks exactly the options of the ground truth, else 0.

    Raises:
        ValueError: the ground truth picks none.
    """
    options = _options(item.extra_info)
    truth = letters_of(item.ground_truth, options)
    if not truth:
        raise ValueError(f"ground truth {item.ground_truth[:80]!r} is no letter and none of the options {options}")
    found = answer_of(item.response)
    picked = letters_of(found, options) if found is not None else ""
    correct = float(picked == truth)
    return Outcome(acc=correct, score=correct, extracted=picked or NO_ANSWER)


def letters_of(text: str, options: dict[str, str]) -> str:
    """The letters that an answer picks, in capitals and alphabetical order; empty when it picks none."""
    text = clean(text)
    by_text = [letter for letter, option in options.items() if _plain(option) == _plain(text)]
    if len(by_text) == 1:
        return by_text[0]
    lettered = _LETTERED.fullmatch(text)
    if lettered:
        return lettered[1].upper()
    letters = _LETTERS.fullmatch(text)
    if letters:
        return "".join(sorted({letter.upper() for letter in re.findall(r"\b[A-Za-z]\b", letters[1])}))
    return "".join(sorted(set(text))) if _RUN.fullmatch(text) else ""


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", clean(text)).casefold()


def _options(extra_info: str) -> dict[str, str]:
    """Letter to text, from the row's `options`; empty when it has none."""
    try:
        extra = json.loads(extra_info or "{}")
    except ValueError:
        return {}
    options = extra.get("options") if isinstance(extra, dict) else None
    if isinstance(options, list):
        return {chr(ord("A") + at): str(option) for at, option in enumerate(options[:26])}
    return {str(key).upper(): str(option) for key, option in options.items()} if isinstance(options, dict) else {}
