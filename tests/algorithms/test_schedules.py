"""Learning rates against hand-worked numbers, and what holds for every schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.algorithms.schedules import Schedule, Shape

SHAPES: tuple[Shape, ...] = ("constant", "linear", "cosine")


def test_the_warm_up_is_linear_and_never_zero_and_ends_at_the_peak() -> None:
    rates = [Schedule(1e-5, "constant", warmup=4, total=10, floor=0.0).rate(i) for i in range(6)]
    assert rates == pytest.approx([0.25e-5, 0.5e-5, 0.75e-5, 1e-5, 1e-5, 1e-5])


def test_without_a_warm_up_the_first_rate_is_the_peak() -> None:
    assert [Schedule(1e-5, shape, 0, 10, 0.0).rate(0) for shape in SHAPES] == [1e-5] * 3


def test_linear_falls_in_equal_steps_to_its_floor() -> None:
    schedule = Schedule(1.0, "linear", warmup=2, total=6, floor=0.2)
    assert [schedule.rate(i) for i in range(1, 8)] == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_is_halfway_down_in_the_middle() -> None:
    schedule = Schedule(1.0, "cosine", warmup=0, total=4, floor=0.5)
    assert [schedule.rate(i) for i in (0, 2, 4)] == pytest.approx([1.0, 0.75, 0.5])
    assert schedule.rate(1) == pytest.approx(0.5 + 0.25 * (1 + 0.5**0.5))


@given(st.sampled_from(SHAPES), st.integers(0, 20), st.integers(1, 50), st.floats(0, 1), st.integers(0, 100))
def test_no_rate_leaves_the_range_between_floor_and_peak_after_the_warm_up(
    shape: Shape, warmup: int, length: int, floor: float, position: int
) -> None:
    schedule = Schedule(2.0, shape, warmup, warmup + length, floor)
    rate = schedule.rate(warmup + position)
    assert 2.0 * floor - 1e-12 <= rate <= 2.0
    assert rate >= schedule.rate(warmup + position + 1) - 1e-12
