"""Soft overlong punishment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.algorithms.shaping import overlong_penalty

LIMITS = st.integers(2, 40_000).flatmap(lambda limit: st.tuples(st.just(limit), st.integers(1, limit - 1)))
FACTORS = st.floats(0, 10)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (16_384, 0.0), (16_385, -1 / 4096), (18_432, -0.5), (20_480, -1.0), (20_481, -1.0), (90_000, -1.0)],
)
def test_the_papers_setting_gives_the_papers_penalties(length: int, penalty: float) -> None:
    assert overlong_penalty(length, max_response_length=20_480, buffer=4_096, factor=1.0) == penalty


@given(limits=LIMITS, factor=FACTORS, length=st.integers(0, 100_000))
def test_the_penalty_stays_between_minus_factor_and_zero(limits: tuple[int, int], factor: float, length: int) -> None:
    assert -factor <= overlong_penalty(length, *limits, factor) <= 0


@given(limits=LIMITS, factor=FACTORS, length=st.integers(0, 100_000))
def test_a_longer_response_is_never_punished_less(limits: tuple[int, int], factor: float, length: int) -> None:
    assert overlong_penalty(length + 1, *limits, factor) <= overlong_penalty(length, *limits, factor)


@given(limits=LIMITS, factor=FACTORS)
def test_the_penalty_is_zero_up_to_the_buffer_and_full_at_the_limit(limits: tuple[int, int], factor: float) -> None:
    limit, buffer = limits
    assert overlong_penalty(limit - buffer, limit, buffer, factor) == 0
    assert overlong_penalty(limit, limit, buffer, factor) == -factor


@pytest.mark.parametrize("arguments", [(1, 10, 0, 1.0), (1, 10, 10, 1.0), (-1, 10, 5, 1.0), (1, 10, 5, -1.0)])
def test_impossible_arguments_are_refused(arguments: tuple[int, int, int, float]) -> None:
    with pytest.raises(ValueError, match=r"buffer|negative"):
        overlong_penalty(*arguments)
