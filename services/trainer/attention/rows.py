"""Attention of rows to themselves, one block at a time. `function.py` says when, `blocks.py` what a block is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.trainer.attention.blocks import Block
from services.trainer.packing import MicroBatch

CHUNK = 256
"""Queries at a time that share one mask where a branch has ancestors, on a CPU."""

States = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values of the same nodes: [R, heads, nodes, d] each."""


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A `Block` on the device; the mask is to be added to the scores."""

    length: int
    ancestors: Tensor | None
    mask: Tensor | None


class RowBlocks:
    """The blocks of each unit of each row of a micro-batch, on its device; made once for all layers."""

    def __init__(self, batch: MicroBatch, dtype: torch.dtype) -> None:
        device = batch.input_ids.device
        self._rows = [[[_prepared(b, dtype, device) for b in u.blocks] for u in units] for units in batch.units or ()]
        self._slab = None if device.type == "cuda" else _slab(batch, dtype)

    def attend(self, states: States, scaling: float | None) -> Tensor:
        """[R, heads, L, d]; nodes of the padding attend to nothing and get 0."""
        # Split and not sliced: the gradient of a slice is as large as what it was cut from.
        by_row = zip(*(torch.split(x, 1) for x in states), strict=True)
        found = [self._attend_row(units, row, scaling) for units, row in zip(self._rows, by_row, strict=True)]
        return torch.cat(found)

    def _attend_row(self, units: Sequence[Sequence[PreparedBlock]], states: States, scaling: float | None) -> Tensor:
        lengths = [sum(block.length for block in unit) for unit in units]
        query, _, value = states
        padding = query.shape[2] - sum(lengths)
        by_unit = zip(*(torch.split(x, [*lengths, padding], dim=2) for x in states), strict=True)
        found = [piece for unit, own in zip(units, by_unit, strict=False) for piece in self._unit(unit, own, scaling)]
        return torch.cat([*found, query.new_zeros(*query.shape[:2], padding, value.shape[-1])], dim=2)

    def _unit(self, unit: Sequence[PreparedBlock], states: States, scaling: float | None) -> list[Tensor]:
        _, keys, values = states
        lengths = [block.length for block in unit]
        found = []
        for block, (q, k, v) in zip(
            unit, zip(*(torch.split(x, lengths, dim=2) for x in states), strict=True), strict=True
        ):
            if block.ancestors is not None:
                k = torch.cat([keys.index_select(2, block.ancestors), k], dim=2)  # noqa: PLW2901  # and those before
                v = torch.cat([values.index_select(2, block.ancestors), v], dim=2)  # noqa: PLW2901
            if block.mask is not None:
                found.append(scaled_dot_product_attention(q, k, v, attn_mask=block.mask, scale=scaling))
            else:
                found.append(attend_causally((q, k, v), self._slab, scaling))
        return found


def attend_causally(states: States, slab: Tensor | None, scaling: float | None) -> Tensor:
    """The last key is the last query's own: each query attends to its own key and to all before it.

    On a GPU (`slab` is None) kernels know that form of mask; on a CPU one is made once, for a few queries at a time.
    """
    query, key, value = states
    length, keys = query.shape[2], key.shape[2]
    if length == keys:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    if slab is None:
        from torch.nn.attention.bias import causal_lower_right  # brings torch's compiler along

        bias: Any = causal_lower_right(length, keys)
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    found, end = [], keys - length
    for part in torch.split(query, len(slab), dim=2):
        end += part.shape[2]
        mask = slab[-part.shape[2] :, slab.shape[1] - end :]
        seen = key[:, :, :end], value[:, :, :end]
        found.append(scaled_dot_product_attention(part, *seen, attn_mask=mask, scale=scaling))
    return torch.cat(found, dim=2)


def causal_slab(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[queries, keys] to be added to the scores of the last queries of so many keys; shorter ones are a part of it."""
    slab = torch.zeros(queries, keys, dtype=dtype, device=device)
    slab[:, keys - queries :].masked_fill_(torch.ones(queries, queries, device=device).triu(1).bool(), -torch.inf)
    return slab


def added_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """To be added to attention scores: 0 where something is visible."""
    hidden = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return hidden.masked_fill_(~visible, torch.finfo(dtype).min)


def _slab(batch: MicroBatch, dtype: torch.dtype) -> Tensor | None:
    blocks = [block for units in batch.units or () for unit in units for block in unit.blocks]
    continued = [block for block in blocks if block.mask is None and len(block.ancestors)]
    if not continued:
        return None
    queries = min(max(block.length for block in continued), CHUNK)
    keys = max(len(block.ancestors) + block.length for block in continued)
    return causal_slab(queries, keys, dtype, batch.input_ids.device)


def _prepared(block: Block, dtype: torch.dtype, device: torch.device) -> PreparedBlock:
    return PreparedBlock(
        length=block.length,
        ancestors=torch.from_numpy(block.ancestors).to(device) if len(block.ancestors) else None,
        mask=None if block.mask is None else added_mask(torch.from_numpy(block.mask).to(device), dtype),
    )
