"""Advantages against hand-worked numbers, and the properties that hold for every group."""

import itertools
import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.algorithms.advantages import EPSILON, group_advantages

rewards = st.lists(st.floats(-2, 1, allow_nan=False), min_size=2, max_size=16)


def test_one_correct_of_sixteen_gets_the_published_3_75_and_the_others_minus_a_quarter() -> None:
    # mean 1/16, sample variance (15/16) / 15 = 1/16, deviation 1/4: (1 − 1/16) / (1/4) = 3.75
    advantages = group_advantages([1.0] + [0.0] * 15)
    assert advantages[0] == pytest.approx(0.9375 / (0.25 + EPSILON), rel=1e-14)
    assert advantages[1:] == pytest.approx([-0.0625 / (0.25 + EPSILON)] * 15, rel=1e-14)


def test_epsilon_is_added_to_the_deviation_and_not_to_the_variance() -> None:
    # rewards ±1e-6: deviation sqrt(2)e-6
    first, second = group_advantages([1e-6, -1e-6])
    assert first == pytest.approx(1e-6 / (math.sqrt(2) * 1e-6 + 1e-6), rel=1e-9)
    assert second == -first


def test_without_the_deviation_an_advantage_is_the_distance_to_the_mean() -> None:
    assert group_advantages([1.0, 0.0, -0.5, 0.5], divide_by_std=False) == [0.75, -0.25, -0.75, 0.25]


def test_equal_rewards_give_exactly_zero_even_where_their_mean_rounds() -> None:
    assert sum([0.1] * 3) / 3 != 0.1  # the trap
    assert group_advantages([0.1] * 3) == [0.0] * 3


def test_rewards_that_differ_in_their_last_bit_alone_give_tiny_advantages_and_not_plus_or_minus_one() -> None:
    close = [0.1, math.nextafter(0.1, 1.0), 0.1, 0.1]
    assert all(0.0 < abs(a) < 1e-10 for a in group_advantages(close))
    huge = group_advantages([1e16, 1e16 + 2, 1e16, 1e16])
    assert huge == pytest.approx([-0.5, 1.5, -0.5, -0.5], rel=1e-5)


def test_a_group_of_one_has_the_advantage_that_was_chosen_for_it() -> None:
    assert group_advantages([2.0]) == [2.0 / (1 + EPSILON)]
    assert group_advantages([2.0], divide_by_std=False) == [2.0]
    assert group_advantages([2.0], singleton="zero") == [0.0]


def test_a_group_of_several_does_not_care_what_was_chosen_for_one() -> None:
    assert group_advantages([1.0, 0.0], singleton="zero") == group_advantages([1.0, 0.0], singleton="reward")


@pytest.mark.parametrize("bad", [[], [math.nan, 1.0], [math.inf], [-1.5e308, 1.5e308]])
def test_rewards_that_are_missing_or_not_finite_are_refused_by_value(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages(bad)


@given(rewards, st.booleans())
def test_advantages_of_a_group_sum_to_zero(group: list[float], divide_by_std: bool) -> None:
    advantages = group_advantages(group, divide_by_std)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-9)


@given(rewards, st.floats(-5, 5))
def test_a_reward_offset_common_to_the_group_changes_nothing_that_matters(group: list[float], offset: float) -> None:
    plain, shifted = group_advantages(group, False), group_advantages([r + offset for r in group], False)
    assert shifted == pytest.approx(plain, abs=1e-9)


@given(rewards)
def test_a_higher_reward_never_gets_a_lower_advantage(group: list[float]) -> None:
    ordered = sorted(group)
    advantages = group_advantages(ordered)
    assert all(a <= b for a, b in itertools.pairwise(advantages))


@given(st.lists(st.floats(-1e150, 1e150), min_size=2, max_size=16))
def test_no_advantage_is_larger_than_the_root_of_one_less_than_the_group(group: list[float]) -> None:
    limit = math.sqrt(len(group) - 1)
    assert all(abs(a) <= limit * (1 + 1e-9) for a in group_advantages(group))


@given(rewards)
def test_advantages_agree_with_the_textbook_deviation(group: list[float]) -> None:
    spread = statistics.stdev(map(Fraction, group)) if len(set(group)) > 1 else 0.0
    mean = statistics.mean(map(Fraction, group))
    expected = [float(Fraction(r) - mean) / (float(spread) + EPSILON) for r in group]
    assert group_advantages(group) == pytest.approx(expected, rel=1e-9, abs=1e-9)
