"""Which responses of mixed length a batch has: their lengths and rewards, before anything is sampled."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypedDict

BOUNDS_AT = 2.0
"""Standard deviations of the logarithm at which the shortest and the longest response lie."""


class SampledGroup(TypedDict):
    """`tokens`, `logprobs` and `rewards` have one entry for each rollout."""

    prompt: list[int]
    tokens: list[list[int]]
    logprobs: list[list[float]]
    rewards: list[float]


@dataclass(frozen=True, slots=True)
class Mix:
    """`groups` prompts with `group_size` rollouts each, of `shortest` to `longest` response tokens."""

    groups: int
    group_size: int
    shortest: int
    longest: int
    seed: int = 1

    def lengths(self) -> list[int]:
        """One for each rollout: evenly spaced quantiles of a log-normal distribution cut at the bounds, shuffled."""
        middle = (math.log(self.shortest) + math.log(self.longest)) / 2
        normal = NormalDist(middle, (math.log(self.longest) - math.log(self.shortest)) / (2 * BOUNDS_AT))
        count = self.groups * self.group_size
        drawn = [round(math.exp(normal.inv_cdf((i + 0.5) / count))) for i in range(count)]
        random.Random(self.seed).shuffle(drawn)
        return [min(max(length, self.shortest), self.longest) for length in drawn]

    def rewards(self) -> list[float]:
        """Of a group: as many right as wrong ones, shuffled."""
        found = [float(i % 2) for i in range(self.group_size)]
        random.Random(self.seed).shuffle(found)
        return found


def cut(groups: Sequence[SampledGroup], most: int) -> list[SampledGroup]:
    """The same groups with no response longer than `most` tokens."""
    return [
        {
            **group,
            "tokens": [tokens[:most] for tokens in group["tokens"]],
            "logprobs": [logprobs[:most] for logprobs in group["logprobs"]],
        }
        for group in groups
    ]


def response_tokens(groups: Sequence[SampledGroup]) -> int:
    return sum(len(tokens) for group in groups for tokens in group["tokens"])
