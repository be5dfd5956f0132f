"""What became of each group: kept in four bytes, and told as if it were kept in dictionaries."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.fates import Fates
from sluice.types import DropReason

SETTLED = st.dictionaries(st.integers(0, 300), st.integers(0, 1 << 30) | st.sampled_from(DropReason))


@given(SETTLED)
def test_each_group_has_the_batch_or_the_reason_that_it_was_given_and_no_other(settled: dict[int, object]) -> None:
    fates = Fates()
    for n, fate in settled.items():
        if isinstance(fate, DropReason):
            fates.drop(n, fate)
        elif isinstance(fate, int):
            fates.train([n], fate)
    for n in range(-1, 302):
        fate = settled.get(n)
        assert fates.reason_of(n) == (fate if isinstance(fate, DropReason) else None)
        assert fates.batch_of(n) == (None if isinstance(fate, DropReason) else fate)
    dropped = Counter(fate for fate in settled.values() if isinstance(fate, DropReason))
    assert fates.counts() == (len(settled) - dropped.total(), dropped)
