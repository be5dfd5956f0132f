"""Learning rates: a linear warm-up, then constant, linear or cosine. Pure; the unit of a position is the caller's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Shape = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """All lengths are in one unit: training steps that made an update, or optimizer updates."""

    peak: float
    shape: Shape
    warmup: int
    total: int
    """Positions of the whole run, warm-up included."""
    floor: float
    """Where `linear` and `cosine` end, as a share of `peak`."""

    def rate(self, position: int) -> float:
        """Learning rate at `position`, from 0.

        In the warm-up `peak · (position + 1) / warmup`: no position has the rate 0. After it, with
        `x = (position − warmup) / (total − warmup)`, at most 1: `peak` (constant), `peak · (1 − (1 − floor) · x)`
        (linear), or `peak · (floor + (1 − floor) · (1 + cos πx) / 2)` (cosine).

        Source: the schedules of transformers, whose warm-up begins one position earlier, at 0.
        """
        if position < self.warmup:
            return self.peak * (position + 1) / self.warmup
        if self.shape == "constant":
            return self.peak
        x = min((position - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        left = 1.0 - x if self.shape == "linear" else (1.0 + math.cos(math.pi * x)) / 2.0
        return self.peak * (self.floor + (1.0 - self.floor) * left)
