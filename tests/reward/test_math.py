"""`math` keeps to the policy of docs/verifiers.md.

Sources of the cases: "dapo" are the right answers that the released rule rejects (tests/reward/test_math_dapo.py);
"deepmath" are ground truths of DeepMath-103K (MIT), each beside a way of our own to write it; "own" are our own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.verifiers.cleaning import clean
from services.reward.verifiers.extraction import answer_of
from services.reward.verifiers.math import read_truth, verify
from services.reward.verifiers.math.equality import same_answer
from services.reward.verifiers.math.structure import read_answer
from sluice.types import NO_ANSWER, ScoreItem
from tests.reward.test_math_dapo import RIGHT_BUT_REJECTED

MakeItem = Callable[..., ScoreItem]

FOUND = [  # own: what models write around an answer, and the answer
    ("\\(34\\)", "34"),
    ("34", "34"),
    ("**Answer:** 34", "34"),
    ("**Answer**: 34", "34"),
    ("Answer: 34.", "34"),
    ("Answer： ３４", "34"),
    ("Answer: \\boxed{\\text{34}}", "34"),
    ("\\boxed{ 34 }", "34"),
    ("\\boxed{\\boxed{34}}", "34"),
    ("Answer: 34</s>", "34"),
    ("Answer: 34<|im_end|>\n<|endoftext|>", "34"),
    ("**Final Answer**\n\n\\[\n34\n\\]", "\\[\n34\n\\]"),
    ("Answer:\n\n$$\n34\n$$\nDone.", "34"),
    ("### Final answer: `34`", "34"),
    ("The answer is $34$, because $2 \\cdot 17 = 34$.", "34"),
    ("The final answer is 34. I hope it is correct.", "34"),
    ("Answer: The total number of ways is 34.", "34"),
    ("Final answer: 34 (since 17 + 17 = 34)", "34"),
    ("The answer should be 34.", "34"),
    ("The answers are 3 and 4.", "3, 4"),
    ("so\n#### 34", "34"),
    ("答案：34。", "34"),
    ("所以答案是 34", "34"),
    ("Answer: 7\nNo, wait.\nAnswer: 34", "34"),
    ("\\boxed{7}\nAnswer: 34", "34"),
    ("Answer: 7\nwait: \\boxed{34}", "34"),
    ("\\boxed{3} and \\boxed{4}", "3, 4"),
    ("\\boxed{3} was wrong, so it must be \\boxed{4}", "4"),
    ("<think>Answer: 7</think>\n\\boxed{34}", "34"),
    ("It costs\n\n$$x = 34$$", "x = 34"),
    ("Therefore the sum is $34$.", "34"),
]
NOT_FOUND = [  # own
    "",
    "There are 34 of them in the first row and more below",
    "<think>Answer: 34",
    "<think>Answer: 34</think>",
    "so it is \\boxed{34",
    "Answer: " + "3" * 3000,
]
EQUAL = [  # policy line, truth, answer
    ("integers", "34", "+34"),
    ("integers", "34", "034"),
    ("integers", "-34", "−34"),
    ("thousands", "1234567", "1,234,567"),
    ("thousands", "1234567", "1{,}234{,}567"),
    ("thousands", "1234567", "1\\,234\\,567"),
    ("thousands", "1234567", "1 234 567"),
    ("decimals", "34", "34.0"),
    ("decimals", "0.5", ".5"),
    ("fractions", "\\dfrac{1}{2}", "1/2"),
    ("fractions", "\\frac{1}{2}", "\\frac12"),
    ("fractions", "1/2", "½"),
    ("fractions", "\\frac{3}{4}", "0.75"),
    ("fractions", "\\frac{2}{4}", "\\frac{1}{2}"),
    ("rounding", "\\frac{1}{3}", "0.3333"),
    ("rounding", "\\pi", "3.14159"),
    ("mixed numbers", "\\frac{5}{2}", "2\\frac{1}{2}"),
    ("mixed numbers", "2.5", "2 1/2"),
    ("scientific", "1200", "1.2 \\times 10^{3}"),
    ("scientific", "0.00012", "1.2e-4"),
    ("percent", "50\\%", "0.5"),
    ("percent", "50\\%", "50 percent"),
    ("percent", "50", "50\\%"),
    ("currency", "76.80", "\\$76.80"),
    ("units", "5\\text{ cm}", "5"),
    ("units", "5\\text{ cm}", "5 centimeters"),
    ("units", "34", "34 apples"),
    ("units", "60^\\circ", "60 degrees"),
    ("units", "5 cm^2", "5\\text{ cm}^2"),
    ("units", "3000000", "3 million"),
    ("chinese", "34", "34元"),
    ("chinese", "3米", "3 m"),
    ("chinese", "Yes", "是"),
    ("text", "Yes", "yes."),
    ("text", "True", "Yes"),
    ("text", "\\text{New York}", "new york"),
    ("choices", "B", "(B)"),
    ("tuples", "(3, 4)", "( 3,4 )"),
    ("tuples", "(1, 2, 3)", "[1,2,3]"),
    ("tuples", "(\\frac12, 3)", "(0.5, 3)"),
    ("sets", "\\{1, 2\\}", "\\left\\{2, 1\\right\\}"),
    ("sets", "1, 2", "2 and 1"),
    ("sets", "\\{1,2\\}", "x = 1 or x = 2"),
    ("sets", "\\{1\\}", "1"),
    ("sets", "3, -3", "\\pm 3"),
    ("intervals", "[-18, 18]", "-18 \\leq x \\leq 18"),
    ("intervals", "(1, 2]", "x \\in (1, 2]"),
    ("intervals", "(-\\infty,1) \\cup (2,3)", "(2,3)∪(-∞,1)"),
    ("matrices", "\\begin{pmatrix} 0 & 1 \\\\ 1 & 0 \\end{pmatrix}", "\\begin{bmatrix}0&1\\\\1&0\\end{bmatrix}"),
    ("matrices", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(1, 2)"),
    ("matrices", "[[1,2],[3,4]]", "\\begin{matrix}1&2\\\\3&4\\end{matrix}"),
    ("names", "5", "x = 5"),
    ("names", "f(x) = x + 1", "x+1"),
    ("chains", "34", "2 \\cdot 17 = 34"),
    ("chains", "34", "S = 30 + 4 = 34"),
    ("expressions", "x^2 + 2x + 1", "(x+1)^2"),
    ("expressions", "2\\sqrt{2}", "\\sqrt{8}"),
    ("expressions", "120", "5!"),
    ("expressions", "\\dfrac{\\pi}{4}", "0.25\\pi"),
    ("expressions", "\\frac{n(n-1)}{2}", "\\binom{n}{2}"),
    ("expressions", "x - y = 1", "y = x - 1"),
    ("expressions", "10^{259}", "10^{259}"),
    ("deepmath", "\\frac{75 \\sqrt{3}}{67}", "\\dfrac{75\\sqrt3}{67}"),
    ("deepmath", "-4\\pi + 2\\pi i", "2\\pi i - 4 \\pi"),
    ("deepmath", "a^a (\\ln a - 1)", "a^a \\ln a - a^a"),
    ("deepmath", "\\{40, 960\\}", "40, 960"),
    ("deepmath", "\\mathbb{R}", "(-\\infty, \\infty)"),
    ("deepmath", "(1000, \\infty)", "x > 1000"),
]
DIFFERENT = [
    ("integers", "34", "3 4"),
    ("integers", "34", "-34"),
    ("thousands", "34", "3,4"),
    ("rounding", "\\frac{1}{3}", "0.33"),
    ("rounding", "0.5", "0.45"),
    ("rounding", "34", "34.4"),
    ("percent", "0.5", "50"),
    ("units", "5 cm", "5 m"),
    ("units", "5 cm^2", "5 cm"),
    ("units", "5", "5m"),
    ("units", "2", "2ab"),
    ("text", "Yes", "No"),
    ("choices", "A", "B"),
    ("tuples", "(1, 2)", "(2, 1)"),
    ("tuples", "(1, 2)", "\\{1, 2\\}"),
    ("sets", "1, 2", "1"),
    ("sets", "34", "34 or 35"),
    ("intervals", "(1, 2)", "[1, 2]"),
    ("intervals", "(1,2) \\cup (3,4)", "(1,2), (3,4)"),
    ("matrices", "\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 2 & 1 \\end{pmatrix}"),
    ("names", "x = 5", "y = 5"),
    ("chains", "34", "35 = 34"),
    ("expressions", "\\sin x", "\\cos x"),
    ("expressions", "n", "n+1"),
    ("tasks", "\\frac12", "\\int_0^1 x\\,dx"),
    ("bounds", "3", "9^{9^{9^{9}}}"),
    ("bounds", "3", "(10^9)!"),
    ("bounds", "3", "(" * 900 + "4" + ")" * 900),
    ("code", "3", "__import__('os').getpid()"),
]


@pytest.mark.parametrize(("response", "answer"), FOUND)
def test_the_answer_is_found_in_what_models_really_write(make_item: MakeItem, response: str, answer: str) -> None:
    assert verify(make_item(response, answer)).acc == 1.0


@pytest.mark.parametrize("response", NOT_FOUND)
def test_a_response_that_is_cut_off_or_never_answers_has_no_answer(make_item: MakeItem, response: str) -> None:
    outcome = verify(make_item(response, "34"))
    assert (outcome.acc, outcome.extracted) == (0.0, NO_ANSWER)


@pytest.mark.parametrize(("response", "truth"), [case for case in RIGHT_BUT_REJECTED if case[0]])
def test_right_answers_that_the_released_rule_rejects_are_right(make_item: MakeItem, response: str, truth: str) -> None:
    if "x" * 300 in response or "7, no, Answer" in response:
        response = response.rstrip("x")
    assert verify(make_item(response, truth)).acc == 1.0


@pytest.mark.parametrize(("line", "truth", "answer"), EQUAL)
def test_what_the_policy_calls_equal_is_right_either_way_round(
    make_item: MakeItem, line: str, truth: str, answer: str
) -> None:
    assert verify(make_item(f"Answer: {answer}", truth)).acc == 1.0, line
    assert verify(make_item(f"Answer: {truth}", answer)).acc == 1.0, f"{line}, the other way round"


@pytest.mark.parametrize(("line", "truth", "answer"), DIFFERENT)
def test_what_the_policy_calls_different_is_wrong(make_item: MakeItem, line: str, truth: str, answer: str) -> None:
    assert verify(make_item(f"Answer: {answer}", truth)).acc == 0.0, line


@pytest.mark.parametrize(
    "truth", ["", "  ", "$$", "\\boxed{}", "\\frac{1}{", "(1, \\frac{)", "?", "\\int_0^1 x\\,dx", "3" * 3000]
)
def test_an_empty_or_unreadable_ground_truth_is_refused_and_never_matched(make_item: MakeItem, truth: str) -> None:
    with pytest.raises(ValueError, match="ground truth"):
        read_truth(truth)
    with pytest.raises(ValueError, match="ground truth"):
        verify(make_item(f"Answer: {truth}", truth))


PIECES = [
    *(
        "34",
        "1,234",
        "0.5",
        "½",
        "\\frac{1}{2}",
        "\\frac12",
        "x",
        "+",
        "-",
        "−",
        "^2",
        "²",
        "\\boxed{",
        "{",
        "}",
        "(",
        ")",
    ),
    *(
        "[",
        "]",
        "\\{",
        "\\}",
        ",",
        ";",
        "=",
        "\\text{cm}",
        "\\%",
        "%",
        "$",
        "\\(",
        "\\)",
        "**",
        "`",
        " ",
        "\n",
        "yes",
        "是",
    ),
    *(
        "\\left",
        "\\right",
        "\\sqrt",
        "\\pi",
        "\\cup",
        "\\infty",
        "\\pm",
        "<",
        "\\leq",
        "!",
        ".",
        "。",
        "３",
        "\x00",
        "\ud800",
    ),
    *("Answer:", "</think>", "<think>", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", " and ", "e5", "/", "°"),
]
TEXT = st.text(st.characters(), max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(response=TEXT)
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_the_judging(response: str) -> None:
    outcome = verify(ScoreItem("1", "math", "p", f"Answer: {response}", "34", "{}", 1))
    assert outcome.acc in (0.0, 1.0)
    found = answer_of(response)
    assert found is None or found.strip()


@given(one=TEXT, other=TEXT)
@settings(max_examples=150, deadline=None)
def test_equality_is_symmetric(one: str, other: str) -> None:
    left, right = read_answer(clean(one)), read_answer(clean(other))
    assert same_answer(left, right) == same_answer(right, left)


@given(TEXT)
@settings(max_examples=100, deadline=None)
def test_every_readable_ground_truth_equals_itself(text: str) -> None:
    try:
        truth = read_truth(text)
    except ValueError:
        return
    assert same_answer(truth, read_answer(clean(text)))


def test_no_timer_of_math_verify_is_ever_set(make_item: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a timer was set")

    monkeypatch.setattr("signal.alarm", refuse)
    monkeypatch.setattr("signal.setitimer", refuse)
    assert verify(make_item("Answer: $x^2+2x+1$", "(x+1)^2")).acc == 1.0
