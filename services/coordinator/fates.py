"""What became of each group of a run: four bytes a group, since a run may have millions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from sluice.types import DropReason

_REASONS = tuple(DropReason)
_LIVE = 0
"""Not settled: in flight, kept, or not issued yet. Above it: index of the batch, plus one; below it: the reason."""


class Fates:
    """By issue number: the batch that has the group, or the reason why it never trains."""

    def __init__(self) -> None:
        self._of = array("i")

    def train(self, groups: Iterable[int], k: int) -> None:
        """Batch k has these groups."""
        for n in groups:
            self._set(n, k + 1)

    def drop(self, n: int, reason: DropReason) -> None:
        """Group n never trains."""
        self._set(n, -1 - _REASONS.index(reason))

    def batch_of(self, n: int) -> int | None:
        fate = self._get(n)
        return fate - 1 if fate > _LIVE else None

    def reason_of(self, n: int) -> DropReason | None:
        fate = self._get(n)
        return _REASONS[-1 - fate] if fate < _LIVE else None

    def place_of(self, n: int) -> int:
        """How many groups of the same batch are before group n: a BATCH record has them in the order of their issue."""
        return self._of[:n].count(self._of[n])

    def counts(self) -> tuple[int, dict[DropReason, int]]:
        """How many groups are in a batch, and how many were dropped, by reason."""
        found = Counter(self._of)
        dropped = {reason: count for at, reason in enumerate(_REASONS) if (count := found.pop(-1 - at, 0))}
        found.pop(_LIVE, None)
        return found.total(), dropped

    def _get(self, n: int) -> int:
        return self._of[n] if 0 <= n < len(self._of) else _LIVE

    def _set(self, n: int, fate: int) -> None:
        if n >= len(self._of):
            self._of.extend([_LIVE] * (n + 1 - len(self._of)))
        self._of[n] = fate
