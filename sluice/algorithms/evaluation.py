"""What an evaluation says of a model: avg@k, pass@k, cons@k and best@k of one problem, and intervals over problems.

All are expectations over a random choice of k of the n responses that a problem has, computed exactly and not by
drawing: so none depends on the order of the responses, and all use every response. A response whose check failed has no
place here: whoever calls leaves it out, and says how many there were.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

RIGHT_ABOVE = 0.5
"""A response with a larger `acc` is right, as where two verifiers are compared."""
LARGEST_PART = 32
"""Largest k of a curve below all n responses: consensus over parts of a larger size takes seconds a problem."""
CONFIDENCE = 0.95
RESAMPLES = 1000
SEED = 0


class NothingToVoteByError(ValueError):
    """A right response has no extracted answer: its verifier names no answers that could be counted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One judged response of a problem: `text` is its extracted answer, None when it has none."""

    acc: float
    score: float
    text: str | None


def sizes(n: int) -> list[int]:
    """The k for which curves over k are shown: the powers of two up to n and LARGEST_PART, and n itself."""
    return sorted({k for bit in range(n.bit_length()) if (k := 1 << bit) <= LARGEST_PART} | {n}) if n > 0 else []


def avg_at_k(accs: Sequence[float]) -> float:
    """avg@k of a problem with k = n responses: `Σ acc / n`, the accuracy of one response.

    It estimates the same number for every k; k only says how precisely. Averaged over problems it is the `avg@32` of
    the DAPO paper (section 4.1) and the `mean@k` of verl.

    Args:
        accs: [n] what the verifier said of each response; n ≥ 1.

    Raises:
        ValueError: there is no response.
    """
    if not accs:
        raise ValueError("avg@k needs at least 1 response")
    return math.fsum(accs) / len(accs)


def pass_at_k(n: int, right: int, k: int) -> float:
    """Chance that at least one of k responses is right: `1 − C(n − c, k) / C(n, k)` with c right ones of n.

    Unbiased for every k ≤ n, which `1 − (1 − c/n)^k` is not. k = 1 gives c / n.

    Raises:
        ValueError: not 0 ≤ right ≤ n, or not 1 ≤ k ≤ n.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.
    """
    _check(n, k, "pass")
    if not 0 <= right <= n:
        raise ValueError(f"pass@{k}: {right} right responses of {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def best_at_k(scores: Sequence[float], k: int) -> float:
    """Mean of the highest score among k responses: `Σᵢ s₍ᵢ₎ · C(i − 1, k − 1) / C(n, k)`, s₍₁₎ ≤ … ≤ s₍ₙ₎.

    The i-th lowest score is the highest of a choice exactly when the other k − 1 are below it. With scores 0 and 1 it
    is pass@k; it says more where a verifier gives part of the points.

    Raises:
        ValueError: not 1 ≤ k ≤ n.

    Source: the expectation of the sample maximum without replacement; what verl's `best@k` draws subsets to estimate.
    """
    n = len(scores)
    _check(n, k, "best")
    every = math.comb(n, k)
    return math.fsum(s * (math.comb(i, k - 1) / every) for i, s in enumerate(sorted(scores)))


def cons_at_k(answers: Sequence[Answer], k: int) -> float:
    """cons@k: accuracy of the answer that most of k responses give, over all choices of k.

    Answers are the same when their extracted texts are. Responses without an answer do not vote; when none of the k
    votes, the choice is wrong. Of answers with equally many votes each wins equally often: the accuracy is the mean of
    theirs. So k = 1 gives avg@k. For k < n the work grows with k³ times the number of different answers.

    Raises:
        ValueError: not 1 ≤ k ≤ n.
        NothingToVoteByError: a right response has no extracted text.

    Source: Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning" (majority vote, k = n). The
    expectation over choices of k is counted here, by how many votes the winner has: no other answer has more.
    """
    _check(len(answers), k, "cons")
    if any(answer.text is None and answer.acc > 0 for answer in answers):
        raise NothingToVoteByError("cons@k: a right response has no extracted answer, so there is nothing to vote by")
    votes = Counter(answer.text for answer in answers if answer.text is not None)
    accs = {text: avg_at_k([a.acc for a in answers if a.text == text]) for text in votes}
    return _consensus(tuple(sorted((count, accs[text]) for text, count in votes.items())), len(answers), k)


@lru_cache(maxsize=4096)  # most problems of a set are all wrong, all right, or one of few splits
def _consensus(groups: tuple[tuple[int, float], ...], n: int, k: int) -> float:
    """cons@k of answers with (responses, acc) each; the rest of the n responses abstain."""
    highest = max((count for count, _ in groups), default=0)
    if k == n:
        winners = [acc for count, acc in groups if count == highest]
        return math.fsum(winners) / len(winners) if winners else 0.0
    won = 0.0
    for most in range(1, min(highest, k) + 1):
        for (drawn, tied), (_, credit) in _choices(groups, n - sum(count for count, _ in groups), k, most).items():
            if tied and drawn == k:
                won += credit / tied
    return won / math.comb(n, k)


def _choices(
    groups: Sequence[tuple[int, float]], silent: int, k: int, most: int
) -> Mapping[tuple[int, int], tuple[float, float]]:
    """Choices of up to k in which no answer has over `most` votes, by (responses, answers with exactly `most`).

    Each entry is (number of choices, the sum over them of the accs of the answers with exactly `most` votes).
    """
    states = {(t, 0): (float(math.comb(silent, t)), 0.0) for t in range(min(silent, k) + 1)}
    for count, acc in groups:
        following: dict[tuple[int, int], tuple[float, float]] = {}
        for (drawn, tied), (ways, credit) in states.items():
            for t in range(min(count, most, k - drawn) + 1):
                top, factor = t == most, math.comb(count, t)
                key = (drawn + t, tied + top)
                before = following.get(key, (0.0, 0.0))
                added = factor * (credit + (acc * ways if top else 0.0))
                following[key] = (before[0] + factor * ways, before[1] + added)
        states = following
    return states


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval for the mean of a metric over problems, by a percentile bootstrap with a fixed seed.

    Problems are drawn, with replacement, never responses: those of one problem are alike, and counting them as
    independent makes intervals up to √k times too narrow. What a problem's own value lacks in precision is in the
    spread between problems. A normal interval would leave [0, 1] for sets as small and as hard as AIME (30 problems),
    where most values are 0. Where all problems have one value the interval is that value, which says that there are
    too few of them and not that it is certain.

    Args:
        values: one value of each problem, in any order: the result does not depend on it.

    Raises:
        ValueError: there is no value.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3.
    """
    if not values:
        raise ValueError("an interval over problems needs at least 1 problem")
    n, ordered, draw = len(values), sorted(values), random.Random(SEED)
    means = sorted(math.fsum(draw.choices(ordered, k=n)) / n for _ in range(RESAMPLES))
    tail = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    return means[tail], means[RESAMPLES - 1 - tail]


def _check(n: int, k: int, name: str) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"{name}@{k} of {n} responses: k must be from 1 to {n}")
