"""What the queue's books count, and that they count it once."""

from __future__ import annotations

import pytest

from services.coordinator.books import Books
from sluice.types import Batch, Floors, Group, GroupStatus, SamplingStats, Tally


@pytest.mark.parametrize(("sequence", "scored"), [(10, 5), (11, 6)])
def test_a_group_that_a_drop_took_is_counted_again_by_no_successor_if_the_last_batch_has_counted_it(
    sequence: int, scored: int
) -> None:
    tally = Tally(issued=8, scored_groups=5, kept_groups=5)
    books = Books(Batch(0, (), (), 8, (), Floors(0, 0), tally, SamplingStats(), version=0, groups_seen=10))
    books.expect_late(3)
    books.count_late(sequence, Group("run", 3, "a", GroupStatus.SCORED, (), "w", "e", 0, 1.0, 0.1), None)
    assert books.tally.scored_groups == scored
