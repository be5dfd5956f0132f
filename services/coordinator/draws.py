"""Which draw of the data order each group took: the ISSUE records say it, and nothing else does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from sluice.types import Issue


class Draws:
    """The draws 0, 1, 2 … of a run's data order, each issued or skipped, once. Without skips, group n took draw n."""

    def __init__(self) -> None:
        self.next = 0
        """The first draw that no record has taken yet."""
        self._borders: list[int] = []
        """For the i-th skipped draw s: s − i. A draw lies behind as many skips as have a border up to its number."""

    def take(self, issue: Issue) -> Iterator[tuple[int, int]]:
        """Pass over what the next record skips; (issue number, draw) of each of its groups."""
        for skipped in issue.skipped:
            self._borders.append(skipped - len(self._borders))
        self.next += issue.count + len(issue.skipped)
        return ((n, self.of(n)) for n in range(issue.first, issue.first + issue.count))

    def of(self, n: int) -> int:
        """The draw of an issued group."""
        return n + bisect_right(self._borders, n)
