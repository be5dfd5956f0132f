"""Metrics of an evaluation against hand-computed values and against counting every choice, and their properties."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.algorithms.evaluation import (
    Answer,
    NothingToVoteByError,
    avg_at_k,
    best_at_k,
    cons_at_k,
    interval,
    pass_at_k,
    sizes,
)

TRUTH = "34"
answers = st.lists(st.sampled_from([TRUTH, "7", "8", None]), min_size=1, max_size=8).map(
    lambda texts: [Answer(float(text == TRUTH), float(text == TRUTH), text) for text in texts]
)
scores = st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=8)


def given_answers(text: str) -> list[Answer]:
    """`34 34 7 -`: a right one twice, a wrong one, and a response without an answer."""
    found = [None if word == "-" else word for word in text.split()]
    return [Answer(float(word == TRUTH), float(word == TRUTH), word) for word in found]


@pytest.mark.parametrize(
    ("n", "right", "k", "value"),
    [
        (2, 1, 1, 1 / 2),
        (4, 1, 2, 1 / 2),  # 3 of the 6 pairs have the right one
        (4, 2, 2, 5 / 6),  # 1 of the 6 pairs has none
        (5, 2, 3, 9 / 10),  # 1 of the 10 triples has none
        (32, 1, 32, 1.0),
        (32, 1, 8, 1 / 4),
        (10, 0, 10, 0.0),
        (10, 10, 1, 1.0),
        (10, 8, 3, 1.0),  # only 2 wrong ones: no triple without a right one
    ],
)
def test_pass_at_k_gives_what_counting_by_hand_gives(n: int, right: int, k: int, value: float) -> None:
    assert pass_at_k(n, right, k) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("34", [1.0]),
        ("34 7", [0.5, 0.5]),  # of two a tie: each wins half the time
        ("34 34 7", [2 / 3, 2 / 3, 1.0]),  # pairs: one sure, two ties
        ("34 7 7", [1 / 3, 1 / 3, 0.0]),
        ("34 34 7 7", [0.5, 0.5, 0.5, 0.5]),
        ("34 - -", [1 / 3, 2 / 3, 1.0]),  # who has no answer does not vote
        ("- -", [0.0, 0.0]),  # nobody votes: wrong
        ("34 7 8", [1 / 3, 1 / 3, 1 / 3]),  # a tie of three
    ],
)
def test_cons_at_k_gives_what_counting_by_hand_gives(text: str, values: list[float]) -> None:
    group = given_answers(text)
    assert [cons_at_k(group, k) for k in range(1, len(group) + 1)] == pytest.approx(values, rel=1e-14)


@pytest.mark.parametrize(
    ("given_scores", "k", "value"),
    [
        ([1.0, 0.0], 1, 0.5),
        ([0.2, 0.5, 0.9], 2, (0.5 + 0.9 + 0.9) / 3),
        ([0.2, 0.5, 0.9], 3, 0.9),
        ([-1.0, -1.0, 1.0, -1.0], 2, 0.0),  # half of the pairs have the 1
    ],
)
def test_best_at_k_gives_what_counting_by_hand_gives(given_scores: list[float], k: int, value: float) -> None:
    assert best_at_k(given_scores, k) == pytest.approx(value, abs=1e-15)


def test_avg_at_k_is_the_mean_and_one_right_of_32_is_a_thirty_second() -> None:
    assert avg_at_k([1.0] + [0.0] * 31) == 1 / 32


def test_curves_are_shown_for_powers_of_two_and_for_all_responses() -> None:
    assert sizes(32) == [1, 2, 4, 8, 16, 32]
    assert sizes(12) == [1, 2, 4, 8, 12]
    assert sizes(256) == [1, 2, 4, 8, 16, 32, 256]
    assert sizes(1) == [1]


def majority(chosen: Sequence[Answer]) -> float:
    votes = Counter(answer.text for answer in chosen if answer.text is not None)
    most = [text for text, count in votes.items() if count == max(votes.values())]
    return (TRUTH in most) / len(most) if most else 0.0


@settings(max_examples=60)
@given(answers)
def test_each_metric_is_the_mean_over_every_choice_of_k_responses(group: list[Answer]) -> None:
    accs = [a.acc for a in group]
    for k in range(1, len(group) + 1):
        choices = list(itertools.combinations(group, k))
        right = statistics.fmean(any(a.acc for a in chosen) for chosen in choices)
        assert pass_at_k(len(group), int(sum(accs)), k) == pytest.approx(right, abs=1e-12)
        assert cons_at_k(group, k) == pytest.approx(statistics.fmean(map(majority, choices)), abs=1e-12)


@given(scores)
def test_best_at_k_is_the_mean_of_the_maximum_over_every_choice(group: list[float]) -> None:
    for k in range(1, len(group) + 1):
        every = [max(chosen) for chosen in itertools.combinations(group, k)]
        assert best_at_k(group, k) == pytest.approx(math.fsum(every) / len(every), abs=1e-12)


@given(answers)
def test_for_one_response_all_metrics_are_the_average(group: list[Answer]) -> None:
    accs = [a.acc for a in group]
    average = avg_at_k(accs)
    assert pass_at_k(len(group), int(sum(accs)), 1) == pytest.approx(average, abs=1e-12)
    assert best_at_k(accs, 1) == pytest.approx(average, abs=1e-12)
    assert cons_at_k(group, 1) == pytest.approx(average, abs=1e-12)


@given(st.integers(1, 64), st.data())
def test_pass_and_best_never_fall_with_k_and_stay_between_average_and_one(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    passes = [pass_at_k(n, right, k) for k in range(1, n + 1)]
    bests = [best_at_k([1.0] * right + [0.0] * (n - right), k) for k in range(1, n + 1)]
    assert bests == pytest.approx(passes, abs=1e-12)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(passes))
    assert passes[-1] == float(right > 0)
    assert all(right / n - 1e-12 <= value <= 1.0 for value in passes)


@given(answers, st.randoms(use_true_random=False))
def test_the_order_of_the_responses_changes_nothing(group: list[Answer], order: object) -> None:
    mixed = list(group)
    order.shuffle(mixed)  # type: ignore[attr-defined]  # hypothesis gives a random.Random and says object
    assert avg_at_k([a.acc for a in mixed]) == avg_at_k([a.acc for a in group])
    for k in range(1, len(group) + 1):
        assert cons_at_k(mixed, k) == cons_at_k(group, k)
        assert best_at_k([a.score for a in mixed], k) == best_at_k([a.score for a in group], k)


@settings(max_examples=25)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_an_interval_holds_the_mean_inside_the_values_whatever_their_order(values: list[float], order: object) -> None:
    low, high = interval(values)
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12
    mixed = list(values)
    order.shuffle(mixed)  # type: ignore[attr-defined]  # as above
    assert interval(mixed) == (low, high)


def test_an_interval_of_many_problems_is_as_wide_as_theory_says_and_narrows_with_their_number() -> None:
    # deviation 0.5 around 0.5: ± 1.96 · 0.5 / √n
    for n in (100, 400):
        low, high = interval([0.0, 1.0] * (n // 2))
        expected = 1.96 * 0.5 / math.sqrt(n)
        assert low == pytest.approx(0.5 - expected, abs=0.15 * expected)
        assert high == pytest.approx(0.5 + expected, abs=0.15 * expected)


def test_the_votes_of_a_thousand_responses_are_counted() -> None:
    group = [Answer(1.0, 1.0, TRUTH)] * 600 + [Answer(0.0, 0.0, str(i % 3)) for i in range(424)]
    curve = [cons_at_k(group, k) for k in (1, 2, 4, 16, 1024)]
    assert curve[:2] == pytest.approx([600 / 1024] * 2)  # of two different answers each wins half the time
    assert curve[1] < curve[2] < curve[3] < curve[4] == 1.0


def test_votes_without_anything_to_vote_by_are_refused() -> None:
    with pytest.raises(NothingToVoteByError, match="no extracted answer"):
        cons_at_k([Answer(1.0, 1.0, None)], 1)


@pytest.mark.parametrize("k", [0, 5])
def test_more_responses_than_there_are_is_refused_and_so_is_none(k: int) -> None:
    with pytest.raises(ValueError, match=f"@{k} of 4 responses: k must be from 1 to 4"):
        pass_at_k(4, 2, k)
    with pytest.raises(ValueError, match=f"@{k} of 4 responses"):
        best_at_k([0.0] * 4, k)
    with pytest.raises(ValueError, match="at least 1"):
        avg_at_k([])
