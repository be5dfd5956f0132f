"""Which response each token belongs to, for whatever is a property of a whole response."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Responses:
    """`index`: [n] int64, the response of each token, from 0 to `count` − 1. Each has at least one token."""

    index: Tensor
    count: int

    def sum(self, values: Tensor) -> Tensor:
        """[n] → [count]"""
        return values.new_zeros(self.count).index_add(0, self.index, values)

    def mean(self, values: Tensor, kept: Tensor) -> Tensor:
        """[n] → [count]: the mean over kept tokens (bool [n]), 0 for a response without one."""
        counts = self.sum(kept.to(values.dtype))
        return self.sum(values * kept) / counts.clamp(min=1.0)

    def max(self, values: Tensor) -> Tensor:
        """[n] → [count]"""
        return values.new_zeros(self.count).scatter_reduce(0, self.index, values, "amax", include_self=False)

    def spread(self, values: Tensor) -> Tensor:
        """[count] → [n]: each token gets the value of its response."""
        return values[self.index]
