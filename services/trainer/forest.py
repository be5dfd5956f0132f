"""Rows of tokens in which whatever sequences have in common is computed once.

A row is a forest: each node is a token, its ancestors are the tokens before it, and a response is a path. A causal
model computes a token from its ancestors alone, so two sequences that begin alike share those nodes exactly: the prompt
of a group, the beginning of its responses, the worked example that all prompts of a data set begin with. The last
token of a response predicts nothing that is trained, so it is in no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Response:
    """What training needs of one rollout with at least one response token."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    behaviour: Sequence[float]
    """Behaviour log-prob (nats) of each token."""
    advantage: float
    group: int
    """Issue number."""

    @property
    def inputs(self) -> IntArray:
        """The tokens a model must read to predict every response token."""
        return np.concatenate([np.asarray(self.prompt, np.int64), np.asarray(self.tokens, np.int64)[:-1]])


@dataclass(frozen=True, slots=True)
class Branch:
    """Nodes [start, end): a chain that continues the path `ancestors` (node indices; empty for a root)."""

    start: int
    end: int
    ancestors: IntArray


@dataclass(frozen=True, slots=True)
class Forest:
    """One row. `token_ids`, `positions`: [nodes]; `predictors[i]`: the node before each token of response i."""

    token_ids: IntArray
    positions: IntArray
    branches: tuple[Branch, ...]
    predictors: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def visible(self, size: int) -> BoolArray:
        """[size, size] what each node attends to: its ancestors and itself; padding attends to itself."""
        mask = np.eye(size, dtype=np.bool_)
        for branch in self.branches:
            rows = mask[branch.start : branch.end]
            rows[:, branch.ancestors] = True
            rows[:, branch.start : branch.end] = np.tri(branch.end - branch.start, dtype=np.bool_)
        return mask


def grow_forest(responses: Sequence[Response], share: bool = True) -> Forest:
    """Put responses into one row; with `share` everything that two of them have in common from the start is one path.

    In lexicographic order a sequence has its longest common beginning with its predecessor, so one pass is enough.
    """
    inputs = [r.inputs for r in responses]
    # Big-endian bytes of numbers that are never negative are in the order of the numbers.
    order = (
        sorted(range(len(responses)), key=lambda i: inputs[i].astype(">i8").tobytes()) if share else range(len(inputs))
    )
    tokens: list[IntArray] = []
    positions: list[IntArray] = []
    branches: list[Branch] = []
    paths: dict[int, IntArray] = {}
    size, last, last_path = 0, np.empty(0, np.int64), np.empty(0, np.int64)
    for i in order:
        common = _common_length(last, inputs[i]) if share else 0
        fresh = len(inputs[i]) - common
        path = np.concatenate([last_path[:common], np.arange(size, size + fresh)])
        if fresh:
            branches.append(Branch(size, size + fresh, path[:common]))
            tokens.append(inputs[i][common:])
            positions.append(np.arange(common, len(inputs[i])))
        paths[i], size, last, last_path = path, size + fresh, inputs[i], path
    predictors = tuple(paths[i][len(r.prompt) - 1 :] for i, r in enumerate(responses))
    return Forest(np.concatenate(tokens), np.concatenate(positions), tuple(branches), predictors)


def _common_length(a: IntArray, b: IntArray) -> int:
    shorter = min(len(a), len(b))
    differ = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differ[0]) if len(differ) else shorter
