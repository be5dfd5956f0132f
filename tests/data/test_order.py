"""Issue numbers to rows and seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.data import position, seed_of

GOLDEN_ORDER = [0, 1, 6, 2, 5, 3, 4, 7]
GOLDEN_SEED = 4137481968619548527
sizes = st.integers(1, 60)
seeds = st.integers(0, 2**64)


@given(sizes, seeds, st.integers(0, 5), st.booleans())
def test_every_epoch_takes_each_row_exactly_once(size: int, seed: int, epoch: int, shuffle: bool) -> None:
    drawn = [position(epoch * size + offset, size, seed, shuffle) for offset in range(size)]
    assert {e for e, _ in drawn} == {epoch}
    assert sorted(index for _, index in drawn) == list(range(size))


@given(sizes, seeds, st.integers(0, 300))
def test_without_shuffling_rows_come_in_table_order(size: int, seed: int, n: int) -> None:
    assert position(n, size, seed, shuffle=False) == (n // size, n % size)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(position(epoch * 50 + i, 50, seed, shuffle=True)[1] for i in range(50))
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


@given(st.integers(0, 2**64), st.integers(0, 2**40))
def test_sampling_seeds_fit_a_signed_64_bit_integer(seed: int, n: int) -> None:
    assert 0 <= seed_of(seed, n) < 2**63


def test_sampling_seeds_differ_between_issue_numbers_and_between_runs() -> None:
    assert len({seed_of(seed, n) for seed in range(10) for n in range(1000)}) == 10_000


def test_another_process_draws_the_same_rows_and_seeds() -> None:
    code = (
        "from sluice.data import position, seed_of;"
        "print([(position(n, 97, 5, True), seed_of(5, n)) for n in range(0, 400, 7)])"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str([(position(n, 97, 5, True), seed_of(5, n)) for n in range(0, 400, 7)])


def test_the_order_of_a_released_seed_never_changes() -> None:
    assert [position(n, 8, 0, shuffle=True)[1] for n in range(8)] == GOLDEN_ORDER
    assert seed_of(0, 0) == GOLDEN_SEED


@pytest.mark.parametrize(("n", "size"), [(-1, 5), (0, 0)])
def test_a_number_or_a_table_that_cannot_be_is_refused(n: int, size: int) -> None:
    with pytest.raises(ValueError, match="issue number"):
        position(n, size, 0, shuffle=True)
