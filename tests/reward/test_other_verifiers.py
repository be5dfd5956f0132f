"""`multiple_choice`, `regex`, several with weights, users' async ones, and the check of ground truths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.reward.mixture import Part, combine, parse_mixture
from services.reward.verifiers import gsm8k, multiple_choice, regex
from services.reward.verifiers.outcome import to_outcome
from services.reward.verifiers.registry import CHECK, load_verifiers
from sluice.types import NO_ANSWER, ScoreItem, Verdict, VerdictKind

MakeItem = Callable[..., ScoreItem]
OPTIONS = '{"options": ["a red hat", "a blue hat", "no hat"]}'


@pytest.mark.parametrize(
    ("response", "truth", "correct"),
    [
        ("Answer: B", "B", 1.0),
        ("Answer: (b)", "B", 1.0),
        ("The answer is **B**.", "(B)", 1.0),
        ("\\boxed{\\text{B}}", "B", 1.0),
        ("Answer: B. a blue hat", "B", 1.0),
        ("Answer: option B", "B", 1.0),
        ("答案：B", "B", 1.0),
        ("Answer: a blue hat", "B", 1.0),
        ("Answer: B", "a blue hat", 1.0),
        ("Answer: A and C", "C, A", 1.0),
        ("Answer: AC", "A, C", 1.0),
        ("B", "B", 1.0),
        ("Answer: A", "B", 0.0),
        ("Answer: A, B", "B", 0.0),
        ("Answer: B or not", "B", 0.0),
        ("A large number of hats, I think", "A", 0.0),
        ("", "B", 0.0),
    ],
)
def test_multiple_choice_reads_letters_and_the_text_of_options(
    make_item: MakeItem, response: str, truth: str, correct: float
) -> None:
    assert multiple_choice.verify(make_item(response, truth, extra_info=OPTIONS)).acc == correct


def test_a_choice_that_is_none_of_the_options_is_a_faulty_ground_truth(make_item: MakeItem) -> None:
    with pytest.raises(ValueError, match="no letter"):
        multiple_choice.verify(make_item("Answer: B", "a green hat", extra_info=OPTIONS))


@pytest.mark.parametrize(
    ("response", "truth", "extracted"),
    [
        ("the code is 3141 </s>", r"\d{4}$", "3141"),
        ("colour: RED", r"(?i)colour: (?P<answer>red|blue)", "RED"),
        ("nothing", r"^\d+$", NO_ANSWER),
    ],
)
def test_regex_searches_the_response(make_item: MakeItem, response: str, truth: str, extracted: str) -> None:
    outcome = regex.verify(make_item(response, truth))
    assert (outcome.extracted, outcome.acc) == (extracted, float(extracted != NO_ANSWER))


@pytest.mark.parametrize("truth", ["", " ", "(", "*a"])
def test_a_pattern_that_is_none_or_matches_everything_is_refused(make_item: MakeItem, truth: str) -> None:
    with pytest.raises(ValueError, match="ground truth"):
        regex.verify(make_item("anything", truth))


@pytest.mark.parametrize(
    ("text", "mixture"),
    [
        ("math", (Part("math"),)),
        ("math+0.2*style", (Part("math"), Part("style", 0.2))),
        ("0.8*math + -0.1*style", (Part("math", 0.8), Part("style", -0.1))),
        ("1e-1*style+math", (Part("style", 0.1), Part("math"))),
        ("math+guess", None),
        ("math+", None),
        ("", None),
        ("2*", None),
        ("1e999*math", None),
    ],
)
def test_several_verifiers_are_named_as_a_sum(text: str, mixture: tuple[Part, ...] | None) -> None:
    assert parse_mixture(text, {"math", "style"}) == mixture


def test_a_sum_weighs_scores_and_takes_acc_and_answer_from_its_first_and_fails_with_any() -> None:
    math = Verdict(VerdictKind.SCORED, 1.0, 1.0, "34", "math@1", 0.5)
    style = Verdict(VerdictKind.SCORED, 0.0, -0.5, "rude", "style@2", 0.25)
    mixture = (Part("math"), Part("style", 0.2))
    both = combine(mixture, [math, style])
    assert (both.acc, both.score, both.extracted, both.verifier) == (1.0, 0.9, "34", "math@1+0.2*style@2")
    assert both.seconds == 0.75
    failed = combine(mixture, [math, Verdict(VerdictKind.TIMEOUT, None, None, "", "style@2", 5.0, "slow")])
    assert (failed.kind, failed.score, failed.message) == (VerdictKind.TIMEOUT, None, "slow")


def test_a_verifier_says_with_none_that_it_found_no_answer() -> None:
    assert to_outcome({"score": 0, "extracted": None}).extracted == NO_ANSWER


@pytest.mark.parametrize(
    ("verifier", "good", "bad"),
    [
        ("exact", "cab", " "),
        ("gsm8k", "#### 7", "seven"),
        ("math", "\\frac12", "\\frac{1}{"),
        ("regex", "a+", "("),
    ],
)
def test_each_verifier_says_before_a_run_which_ground_truths_it_cannot_use(
    make_item: MakeItem, verifier: str, good: str, bad: str
) -> None:
    check = load_verifiers(())[CHECK + verifier]
    assert check.verify(make_item("", good)) is True
    with pytest.raises(ValueError, match=r"truth|pattern"):
        check.verify(make_item("", bad))
    assert gsm8k.check_truth("#### 1,000") == "1000"


def test_labels_follow_the_code_so_that_a_cache_never_serves_an_older_verdict() -> None:
    labels = {verifier.label for verifier in load_verifiers(()).values()}
    assert all(len(label.partition("@")[2]) == 8 for label in labels)
    assert load_verifiers(())["math"].label == load_verifiers(())["math"].label
