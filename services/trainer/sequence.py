"""Sequence parallelism after Ulysses: ranks that share every micro-batch, each with some of the columns of all rows.

Everything but attention looks at one token at a time. For attention the ranks swap: each gives up its part of the
columns for all heads and gets all columns for its part of the heads, and the reverse afterwards. The gradient of such a
swap is the other swap, so each rank's gradient is that of the tokens it holds, and the sum over ranks is the whole one.
Source: Jacobs et al., "DeepSpeed Ulysses" (2023). Why it is not DeepSpeed's own: docs/adr/0020.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from services.trainer.packing import MicroBatch

T = TypeVar("T")
Ranges = tuple[tuple[int, int], ...]
"""Heads [start, end) of each rank; key and value heads that several ranks need are in several of them."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One rank's columns of a micro-batch of n trained tokens; fields as in MicroBatch, `nodes` within the slice.

    mine: [n] bool, the tokens that are predicted from here. Shifting to the right needs no neighbour: the target of a
    token is known wherever the node before it lies.
    """

    input_ids: Tensor
    position_ids: Tensor
    nodes: Tensor
    slots: Tensor
    targets: Tensor
    mine: Tensor


class SequenceGroup:
    """The ranks that share micro-batches with this one, which is the one at `index` of them.

    tensors, objects: process groups of all of them, for activations and for small Python values.
    """

    def __init__(self, size: int, index: int, tensors: Any, objects: Any) -> None:
        self.size, self.index = size, index
        self._tensors, self._objects = tensors, objects

    def share(self, value: T | None) -> T:
        """The first rank's value, which can be pickled, on every rank of the group."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, group=self._objects, group_src=0)
        shared: T = box[0]
        return shared

    def slice(self, batch: MicroBatch) -> Slice:
        """This rank's columns; the rows' length is a multiple of `size`."""
        length = batch.input_ids.shape[1]
        width = length // self.size
        start = self.index * width
        column, row = batch.nodes % length, batch.nodes // length
        here = (column >= start) & (column < start + width)
        mine = here[batch.slots]
        return Slice(
            input_ids=batch.input_ids[:, start : start + width],
            position_ids=batch.position_ids[:, start : start + width],
            nodes=(row * width + column - start)[here],
            slots=(here.cumsum(0) - 1)[batch.slots[mine]],
            targets=batch.targets[mine],
            mine=mine,
        )

    def whole(self, values: Tensor, mine: Tensor) -> Tensor:
        """[..., n] from each rank's own entries, on every rank. A gradient goes back to this rank's entries alone.

        All ranks compute the same loss from the whole: its gradient is there already and must not be added up.
        """
        found: Tensor = _Whole.apply(values, mine, self._tensors)  # type: ignore[no-untyped-call]
        return found

    def to_heads(self, states: Tensor, ranges: Ranges) -> Tensor:
        """[R, heads, columns of this rank, d] of every rank → [R, heads of this rank, all columns, d]."""
        found: Tensor = _ToHeads.apply(states, ranges, self)  # type: ignore[no-untyped-call]
        return found

    def to_columns(self, states: Tensor, ranges: Ranges) -> Tensor:
        """[R, heads of this rank, all columns, d] → [R, all heads, columns of this rank, d]; no `ranges` overlap."""
        found: Tensor = _ToColumns.apply(states, ranges, self)  # type: ignore[no-untyped-call]
        return found

    def send_heads(self, states: Tensor, ranges: Ranges) -> Tensor:
        """`to_heads` without a gradient."""
        rows, _, width, depth = states.shape
        each = rows * width * depth
        start, end = ranges[self.index]
        received = self._swap(
            [states[:, a:b] for a, b in ranges],
            counts=[each * (end - start)] * self.size,
        )
        whole = received.view(self.size, rows, end - start, width, depth)
        return whole.permute(1, 2, 0, 3, 4).reshape(rows, end - start, self.size * width, depth)

    def send_columns(self, states: Tensor, ranges: Ranges) -> Tensor:
        """`to_columns` without a gradient. What several ranks send for a head is added up."""
        rows, _, length, depth = states.shape
        width = length // self.size
        counts = [rows * (b - a) * width * depth for a, b in ranges]
        received = self._swap(list(torch.split(states, width, dim=2)), counts)
        heads = states.new_zeros(rows, max(b for _, b in ranges), width, depth)
        for (a, b), part in zip(ranges, torch.split(received, counts), strict=True):
            heads[:, a:b] += part.view(rows, b - a, width, depth)
        return heads

    def _swap(self, parts: list[Tensor], counts: list[int]) -> Tensor:
        """Send part i to rank i; returns what came from each rank, one after the other, `counts` elements of each."""
        sent = torch.cat([part.reshape(-1) for part in parts])
        received = sent.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, [part.numel() for part in parts], group=self._tensors)
        return received


def query_ranges(heads: int, ranks: int) -> Ranges:
    """Heads of each rank: as even as can be, the first ranks have one more where `ranks` does not divide them."""
    borders = [rank * (heads // ranks) + min(rank, heads % ranks) for rank in range(ranks + 1)]
    return tuple(pairwise(borders))


def key_ranges(queries: Ranges, repeats: int) -> Ranges:
    """Key and value heads that each rank's query heads attend to, where `repeats` query heads share one of them."""
    return tuple((a // repeats, -(-b // repeats)) for a, b in queries)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, mine: Tensor, group: Any) -> Tensor:
        ctx.save_for_backward(mine)
        whole = values.new_zeros(*values.shape[:-1], len(mine))
        whole[..., mine] = values
        dist.all_reduce(whole, group=group)  # one rank's entry and zeros
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (mine,) = ctx.saved_tensors
        return gradient[..., mine], None, None


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, ranges: Ranges, group: SequenceGroup) -> Tensor:
        ctx.ranges, ctx.group = ranges, group
        return group.send_heads(states, ranges)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.send_columns(gradient, ctx.ranges), None, None


class _ToColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, ranges: Ranges, group: SequenceGroup) -> Tensor:
        ctx.ranges, ctx.group = ranges, group
        return group.send_columns(states, ranges)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.send_heads(gradient, ctx.ranges), None, None
