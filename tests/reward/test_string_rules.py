"""`exact` and `gsm8k`, and what no text may do to any built-in rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.verifiers import exact, gsm8k
from services.reward.verifiers.outcome import Outcome, to_outcome
from services.reward.verifiers.registry import load_verifiers
from sluice.types import ScoreItem

MakeItem = Callable[..., ScoreItem]


@pytest.mark.parametrize(
    ("response", "truth", "correct"),
    [
        ("cab", "cab", 1.0),
        ("  cab\n", "cab", 1.0),
        ("cab<|im_end|>", "cab", 1.0),
        ("cab </s>\n<|endoftext|> ", "cab", 1.0),
        ("cab", " cab ", 1.0),
        ("Cab", "cab", 0.0),
        ("cab cab", "cab", 0.0),
        ("</s>cab", "cab", 0.0),
        ("", "cab", 0.0),
    ],
)
def test_exact_compares_the_whole_response(make_item: MakeItem, response: str, truth: str, correct: float) -> None:
    assert exact.verify(make_item(response, truth)) == Outcome(correct, correct, exact.strip_end(response))


@pytest.mark.parametrize(
    ("response", "truth", "correct"),
    [
        ("3 + 4 = 7\n#### 7", "7", 1.0),
        ("#### 5\nno\n#### 7 apples, not 8", "7", 1.0),
        ("It costs $1,234.50 in all.", "1234.5", 1.0),
        ("the answer is 18.0", "18", 1.0),
        ("#### −3", "-3", 1.0),
        ("10-3 is 7, and 5-7", "7", 1.0),
        ("it is -7", "7", 0.0),
        ("7\n#### none", "7", 0.0),
        ("sizes 3,4", "4", 1.0),
        ("sizes 3,4", "34", 0.0),
        ("7/8", "8", 1.0),
        ("no number", "7", 0.0),
        ("#### 72", "He sold 48/2 = 24 and 48+24 = 72.\n#### 72", 1.0),
    ],
)
def test_gsm8k_compares_the_number_after_the_marker_or_else_the_last_one(
    make_item: MakeItem, response: str, truth: str, correct: float
) -> None:
    assert gsm8k.verify(make_item(response, truth)).acc == correct


def test_a_ground_truth_without_a_number_is_an_error_and_not_a_wrong_answer(make_item: MakeItem) -> None:
    with pytest.raises(ValueError, match="no number"):
        gsm8k.verify(make_item("7", "seven"))


VERIFIERS = load_verifiers(())

# Surrogates too: an engine may cut a character in two.
ANY_TEXT = st.text(st.characters(), max_size=400) | st.lists(
    st.sampled_from(["Answer:", "####", "\\boxed{", "}", "{", "$", "\\frac", "\\text{", "3", "²", "\ud800", "\n", "="]),
    max_size=40,
).map("".join)


@given(response=ANY_TEXT, truth=ANY_TEXT)
def test_no_text_breaks_a_built_in_rule(response: str, truth: str) -> None:
    item = ScoreItem("1", "any", "p", response, truth + " 7", "{}", 1)
    for verifier in (VERIFIERS[name] for name in ("exact", "gsm8k", "math_dapo", "math_dapo_boxed")):
        outcome = to_outcome(verifier.verify(item))
        assert outcome.acc in (0.0, 1.0)
        assert outcome.score in ((-1.0, 1.0) if verifier.name.startswith("math_dapo") else (0.0, 1.0))
