"""The released rule, fault for fault: every row was derived from the rule as published, not from this code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.reward.verifiers.math_dapo import last_box, normalise, verify, verify_boxed
from sluice.types import ScoreItem

MakeItem = Callable[..., ScoreItem]

RIGHT_AND_ACCEPTED = [
    ("So the sum is 34.\n\nAnswer: 34", "34"),
    ("answer : 34", "34"),
    ("ANSWER:\n\n  34", "34"),
    ("Answer: 7\nNo, wait.\nAnswer: 34", "34"),
    ("Answer: $34$", "34"),
    ("Answer: $34$.", "34"),
    ("Answer: The result is $34$ exactly", "34"),
    ("Answer: x = 34", "34"),
    ("Answer: 34 units", "34"),
    ("Answer: 34^\\circ", "34"),
    ("Answer: 34\\text{ cm}", "34"),
    ("Answer: \\boxed{34}", "34"),
    ("Answer: \\$1,234", "1234"),
    ("Answer: 1{,}234", "1,234"),
    ("Answer: \\frac12", "\\frac{1}{2}"),
    ("Answer: \\sqrt2", "\\sqrt{2}"),
    ("Answer: \\overline{AB}", "AB"),
    ("Answer: a 34", "34"),
    ("x" * 5000 + "Answer: 34", "34"),
]

RIGHT_BUT_REJECTED = [
    ("Answer: \\(34\\)", "34"),
    ("Answer: \\[34\\]", "34"),
    ("Answer: 34.", "34"),
    ("Answer: 34.0", "34"),
    ("Answer: +34", "34"),
    ("Answer: 034", "34"),
    ("Answer: 34", "034"),
    ("Answer: −34", "-34"),
    ("Answer: -1,234", "-1234"),
    ("Answer: 34 = 2*17", "34"),
    ("Answer: 34\\%", "34"),
    ("Answer: **34**", "34"),
    ("**Answer:** 34", "34"),
    ("**Answer**: 34", "34"),
    ("The answer is 34", "34"),
    ("The answer is: 34", "34"),
    ("Answer: 7, no, Answer: 34", "34"),
    ("Answer: 34\n" + "x" * 300, "34"),
    ("Answer: {34}", "34"),
    ("Answer: (34)", "34"),
    ("Answer: '34'", "34"),
    ("Answer: `34`", "34"),
    ("Answer: ３４", "34"),
    ("Answer： 34", "34"),
    ("Answer: 34 litres", "34"),
    ("Answer: \\dfrac{1}{2}", "\\frac{1}{2}"),
    ("Answer: 1/2", "\\frac{1}{2}"),
    ("Answer: 0.5", "\\frac{1}{2}"),
    ("Answer: 34</s>", "34"),
    ("\\boxed{34}", "34"),
    ("", "34"),
]

WRONG_BUT_ACCEPTED = [
    ("Answer: 3 4", "34"),
    ("I give up.", "[INVALID]"),
    ("Answer: 3units4", "34"),
    ("Answer: 3,4", "34"),
    ("Answer: 3,\\text{and}4", "34"),
]


@pytest.mark.parametrize(("response", "truth"), RIGHT_AND_ACCEPTED + WRONG_BUT_ACCEPTED)
def test_the_released_rule_gives_plus_one(make_item: MakeItem, response: str, truth: str) -> None:
    outcome = verify(make_item(response, truth))
    assert (outcome.score, outcome.acc) == (1.0, 1.0)


@pytest.mark.parametrize(("response", "truth"), RIGHT_BUT_REJECTED)
def test_the_released_rule_gives_minus_one_though_a_person_would_agree(
    make_item: MakeItem, response: str, truth: str
) -> None:
    outcome = verify(make_item(response, truth))
    assert (outcome.score, outcome.acc) == (-1.0, 0.0)


def test_the_extracted_answer_is_the_normalised_last_answer(make_item: MakeItem) -> None:
    assert verify(make_item("Answer: 7\nAnswer: $1,000$ dollars")).extracted == "1000"
    assert verify(make_item("no marker at all")).extracted == "[INVALID]"


def test_the_marker_in_a_prompt_is_not_looked_at(make_item: MakeItem) -> None:
    assert verify(make_item("I do not know", prompt="End with Answer: 34")).score == -1.0


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("x=y=5", "5"),
        ("an apple", "apple"),
        ("banana split", "banansplit"),
        ("5\\mbox{cm}", "5"),
        ("x,\\text{and}y", "x,y"),
        ("5\\text{m}^2", "5"),
        ("5\\text{}^2", "5"),
        ("$a$ or $b$", "a"),
        ("\\text{yes}\\textbf{no}", "yesno"),
        ("\\frac1234", "\\frac{1}{2}34"),
        ("\\sqrt{3}", "\\sqrt{3}"),
        ("1,2,3", "123"),
        ("1,2,x", "1,2,x"),
        ("", ""),
    ],
)
def test_normalisation_runs_in_the_released_order(answer: str, form: str) -> None:
    assert normalise(answer) == form


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("so \\boxed{34}", "34", 1.0),
        ("\\boxed{1} then \\boxed{34}", "34", 1.0),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1.0),
        ("\\boxed{ 34}", "34", -1.0),
        ("\\boxed{x=34}", "34", -1.0),
        ("\\boxed{034}", "34", -1.0),
        ("\\boxed{1,234}", "1234", -1.0),
        ("\\boxed{34}" + "x" * 100, "34", -1.0),
        ("\\boxed{34} then \\boxed{7", "34", -1.0),
        ("Answer: 34", "34", -1.0),
    ],
)
def test_the_strict_boxed_form_compares_characters(
    make_item: MakeItem, response: str, truth: str, score: float
) -> None:
    assert verify_boxed(make_item(response, truth)).score == score


def test_the_last_box_must_close() -> None:
    assert last_box("a \\boxed{b{c}d} e") == "b{c}d"
    assert last_box("nothing") == "[INVALID]"
