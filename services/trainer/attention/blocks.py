"""What the nodes of a long row attend to, in pieces: a mask of the whole row would have length² entries.

A row falls into units that share nothing, and a unit into blocks, each with the keys that its nodes see and no others.
Short trees and short branches go together under a small mask; a long branch needs none, for each of its nodes sees all
ancestors of the branch and, of the branch itself, what comes before it. So what is held grows with the row's length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from services.trainer.forest import BoolArray, Branch, Forest, IntArray

NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Block:
    """The next `length` nodes of a unit, that attend to `ancestors` and to themselves.

    ancestors: [a] ascending indices within the unit, all before the block. mask: [length, a + length], which of
    (ancestors, block) a node sees; None: all ancestors, and of the block its predecessors and itself.
    """

    length: int
    ancestors: IntArray
    mask: BoolArray | None

    @property
    def pairs(self) -> int:
        """Products of a query with a key that attention computes."""
        own = self.length * self.length
        return len(self.ancestors) * self.length + (own // 2 if self.mask is None else own)


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive nodes of a row, to which and from which nobody else attends."""

    blocks: tuple[Block, ...]

    @property
    def length(self) -> int:
        """Nodes."""
        return sum(block.length for block in self.blocks)


def units_of(forest: Forest, mask_length: int) -> tuple[Unit, ...]:
    """A row in units, in order. No mask has more than `mask_length` columns."""
    units: list[Unit] = []
    together: list[Branch] = []
    for tree in _trees(forest):
        start, end = tree[0].start, tree[-1].end
        if together and end - together[0].start > mask_length:
            units.append(Unit((_block(together, together[0].start, NOTHING),)))
            together = []
        if end - start > mask_length:
            units.append(Unit(tuple(_split(tree, mask_length))))
        else:
            together += tree
    if together:
        units.append(Unit((_block(together, together[0].start, NOTHING),)))
    return tuple(units)


def _trees(forest: Forest) -> Iterator[Sequence[Branch]]:
    """The branches of each tree: a root, which has no ancestors, and all that follow it up to the next one."""
    roots = [i for i, branch in enumerate(forest.branches) if not len(branch.ancestors)]
    for begin, end in pairwise([*roots, len(forest.branches)]):
        yield forest.branches[begin:end]


def _split(tree: Sequence[Branch], mask_length: int) -> Iterator[Block]:
    """Blocks of one tree: as many consecutive branches as their keys fit a mask, or one branch without a mask."""
    root = tree[0].start
    current, outside = [tree[0]], NOTHING
    for branch in tree[1:]:
        seen = np.union1d(outside, branch.ancestors[branch.ancestors < current[0].start])
        if len(seen) + branch.end - current[0].start <= mask_length:
            current.append(branch)
            outside = seen
        else:
            yield _block(current, root, outside)
            current, outside = [branch], branch.ancestors
    yield _block(current, root, outside)


def _block(branches: Sequence[Branch], root: int, outside: IntArray) -> Block:
    """`outside`: the ancestors of all these branches that are not among their nodes, as indices into the row."""
    start, length = branches[0].start, branches[-1].end - branches[0].start
    if len(branches) == 1:
        return Block(length, outside - root, None)
    mask = np.zeros((length, len(outside) + length), np.bool_)
    for branch in branches:
        rows = mask[branch.start - start : branch.end - start]
        inside = branch.ancestors >= start
        rows[:, np.searchsorted(outside, branch.ancestors[~inside])] = True
        rows[:, len(outside) + branch.ancestors[inside] - start] = True
        own = len(outside) + branch.start - start
        rows[:, own : own + branch.end - branch.start] = np.tri(branch.end - branch.start, dtype=np.bool_)
    return Block(length, outside - root, mask)
