"""Micro-batches: rows of equal length under a token budget, and what the loss needs to know about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.trainer.attention.blocks import Unit, units_of
from services.trainer.forest import Forest, Response, grow_forest
from sluice.algorithms.losses import Responses

Group = Sequence[Response]
"""Responses to one prompt; where beginnings are shared they are packed into the same row."""


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """`budget`: tokens of a micro-batch, padding included. `share`: compute common beginnings once.

    `attention_unit`: row length at which attention costs as much as the rest of the model (6 · hidden size).
    `single_row`: the attention kernel knows no masks, only row borders. `mask_length`: longer rows get units instead of
    a mask; None: none do. `slices`: what the length of rows must be a multiple of, for that many ranks share them.
    """

    budget: int
    share: bool
    attention_unit: int
    single_row: bool = False
    mask_length: int | None = None
    slices: int = 1


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """R rows of L tokens with m predicting nodes and n trained tokens.

    input_ids, position_ids: [R, L]. Who attends to whom is in one of three: visible, [R, L, L] bool; units, those of
    each row; borders, where each sequence of a single row begins, and its end: int32.
    nodes: [m] flat indices into R·L whose logits are needed. slots: [n] index into `nodes` of each trained token,
    ascending; targets: [n] the tokens themselves; of_response: [n] int64 index into `groups`; behaviour, advantages:
    [n] float64, for there are few of them and every aggregation of them should be exact.
    """

    input_ids: Tensor
    position_ids: Tensor
    visible: Tensor | None
    units: tuple[tuple[Unit, ...], ...] | None
    borders: Tensor | None
    nodes: Tensor
    slots: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    of_response: Tensor
    groups: tuple[int, ...]
    """Issue number of the group of each response."""
    masked: bool = False
    """Only there so that this rank makes the same collective calls as the others: nothing of it counts."""

    @property
    def size(self) -> int:
        """Computed tokens, padding included."""
        return self.input_ids.numel()

    @property
    def responses(self) -> Responses:
        """Which tokens belong together."""
        return Responses(self.of_response, len(self.groups))

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch on a device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {n: v.to(device) if isinstance(v, Tensor) else v for n, v in values.items()}
        return MicroBatch(**moved)


def pack(groups: Sequence[Group], limits: PackingLimits) -> list[MicroBatch]:
    """Micro-batches that hold every response once. Which ones go together changes the speed and nothing else."""
    trees = [part for group in groups for part in _fitting(group, limits)]
    sizes = [len(grow_forest(tree, limits.share)) for tree in trees]
    left = sorted(range(len(trees)), key=lambda i: -sizes[i])
    batches = []
    while left:
        chosen = min(
            (_fill(left, sizes, capacity, limits) for capacity in _capacities(sizes[left[0]], limits)),
            key=lambda rows: _cost_per_token(rows, trees, sizes, limits),
        )
        batches.append(micro_batch([[r for i in row for r in trees[i]] for row in chosen], limits))
        taken = {i for row in chosen for i in row}
        left = [i for i in left if i not in taken]
    return batches


def masked_micro_batch(single_row: bool = False, slices: int = 1) -> MicroBatch:
    """The smallest pass through the model; its loss is 0 and its gradient is 0."""
    nothing = Response(prompt=(0,), tokens=(0,), behaviour=(0.0,), advantage=0.0, group=-1)
    limits = PackingLimits(slices, share=False, attention_unit=1, single_row=single_row, slices=slices)
    return replace(micro_batch([[nothing]], limits), masked=True)


def _fitting(group: Group, limits: PackingLimits) -> list[list[Response]]:
    """The group whole, or in parts that each fit the budget; a single response always fits by the run's validation."""
    if not limits.share:
        return [[r] for r in group]
    parts: list[list[Response]] = []
    room = 0
    for response in group:
        if len(response.tokens) > room:
            parts.append([])
            room = limits.budget - len(response.prompt)
        parts[-1].append(response)
        room -= len(response.tokens)
    return parts


def _capacities(largest: int, limits: PackingLimits) -> list[int]:
    """Row lengths worth trying: the largest tree, doubled up to the budget."""
    if limits.single_row:
        return [limits.budget]
    found = [min(_rounded(largest, limits), limits.budget)]
    while found[-1] < limits.budget:
        found.append(min(2 * found[-1], limits.budget))
    return found


def _fill(left: Sequence[int], sizes: Sequence[int], capacity: int, limits: PackingLimits) -> list[list[int]]:
    """First fit, largest first, into as many rows of `capacity` as the budget allows."""
    most = max(limits.budget // capacity, 1)
    rows: list[list[int]] = []
    used: list[int] = []
    for i in left:
        at = next((r for r, u in enumerate(used) if u + sizes[i] <= capacity), None)
        if at is not None:
            rows[at].append(i)
            used[at] += sizes[i]
        elif len(rows) < most:
            rows.append([i])
            used.append(sizes[i])
    return rows


def _cost_per_token(
    rows: list[list[int]], trees: Sequence[Group], sizes: Sequence[int], limits: PackingLimits
) -> float:
    forests = [grow_forest([r for i in row for r in trees[i]], limits.share) for row in rows]
    longest = _rounded(max(len(forest) for forest in forests), limits)
    if _masked(longest, limits):
        pairs = len(rows) * longest * longest
    else:
        pairs = sum(block.pairs for units in _units(forests, limits) for unit in units for block in unit.blocks)
    cost = len(rows) * longest + pairs / limits.attention_unit
    return cost / sum(sizes[i] for row in rows for i in row)


def _rounded(length: int, limits: PackingLimits) -> int:
    return -(-length // limits.slices) * limits.slices


def _masked(length: int, limits: PackingLimits) -> bool:
    """Whether rows of that length have a mask as a whole."""
    return not limits.single_row and (limits.mask_length is None or length <= limits.mask_length)


def _units(forests: Sequence[Forest], limits: PackingLimits) -> tuple[tuple[Unit, ...], ...]:
    return tuple(units_of(forest, limits.mask_length or 0) for forest in forests)


def _borders(forest: Forest, length: int) -> Tensor:
    """Nothing is shared where they are needed, so a branch is a sequence; padding is one more."""
    ends = [*(branch.end for branch in forest.branches), *([length] if len(forest) < length else [])]
    return torch.tensor([0, *ends], dtype=torch.int32)


def micro_batch(rows: Sequence[Sequence[Response]], limits: PackingLimits) -> MicroBatch:
    """One micro-batch of exactly these rows, padded to the longest."""
    forests = [grow_forest(row, limits.share) for row in rows]
    length = _rounded(max(len(f) for f in forests), limits)
    masked = _masked(length, limits)
    responses = [r for row in rows for r in row]
    predictors = [path + at * length for at, f in enumerate(forests) for path in f.predictors]
    nodes, slots = np.unique(np.concatenate(predictors), return_inverse=True)
    order = np.argsort(slots, kind="stable")
    lengths = [len(r.tokens) for r in responses]

    def tokens(values: Sequence[Any], dtype: Any) -> Tensor:
        """One entry a token, in the order of `slots`."""
        return torch.from_numpy(np.concatenate([np.asarray(v, dtype) for v in values])[order])

    return MicroBatch(
        input_ids=_padded([f.token_ids for f in forests], length),
        position_ids=_padded([f.positions for f in forests], length),
        visible=torch.from_numpy(np.stack([f.visible(length) for f in forests])) if masked else None,
        units=None if masked or limits.single_row else _units(forests, limits),
        borders=_borders(forests[0], length) if limits.single_row else None,
        nodes=torch.from_numpy(nodes),
        slots=torch.from_numpy(slots[order]),
        targets=tokens([r.tokens for r in responses], np.int64),
        behaviour=tokens([r.behaviour for r in responses], np.float64),
        advantages=torch.from_numpy(np.repeat([r.advantage for r in responses], lengths)[order]),
        of_response=torch.from_numpy(np.repeat(np.arange(len(responses)), lengths)[order]),
        groups=tuple(r.group for r in responses),
    )


def _padded(rows: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]], length: int) -> Tensor:
    table = np.zeros((len(rows), length), np.int64)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return torch.from_numpy(table)
