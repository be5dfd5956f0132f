"""Attention that respects the borders of rows: under one mask, block by block, by flash-attention, and over slices.

Transformers looks its attention functions up by name. `install` puts ours before those of the names that we know; they
do nothing of their own unless the model is called with `rows`, and then the rows are attended to as those say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from services.trainer.attention.rows import RowBlocks, States, added_mask
from services.trainer.packing import MicroBatch
from services.trainer.sequence import SequenceGroup, key_ranges, query_ranges
from sluice.errors import ConfigError

SCORE_CHANGES = ("softcap", "position_bias", "s_aux")
"""Arguments by which models change attention scores, which is not done here."""


@dataclass(slots=True)
class Rows:
    """How the rows of one micro-batch attend to themselves; given to the model, whose layers hand it on.

    mask: [R, 1, L, L] to be added to the scores; without it `blocks`; or neither, and flash-attention is told where
    sequences begin. used: an attention function has seen this; the code of a model may not hand it on.
    """

    sequence: SequenceGroup | None
    mask: Tensor | None
    blocks: RowBlocks | None
    used: bool = False


def install() -> None:
    """Let transformers find our functions under the names of its own. May be called again."""
    # Slow to import, and before `join_ranks` they would bring torch's compiler along.
    from transformers import AttentionInterface
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    by_flash = partial(_by_flash, flash_attention_forward)
    AttentionInterface.register("sdpa", _RowAttention(_by_products, sdpa_attention_forward))
    AttentionInterface.register("flash_attention_2", _RowAttention(by_flash, flash_attention_forward))


def arguments(batch: MicroBatch, dtype: torch.dtype, sequence: SequenceGroup | None) -> dict[str, Any]:
    """What the body of a model is called with, besides tokens and positions."""
    mask = None if batch.visible is None else added_mask(batch.visible, dtype).unsqueeze(1)
    if batch.borders is not None:
        longest = int(batch.borders.diff().max())
        found: dict[str, Any] = {"attention_mask": None, "max_length_q": longest, "max_length_k": longest}
        found |= {"cu_seq_lens_q": batch.borders, "cu_seq_lens_k": batch.borders}
        return found if sequence is None else {**found, "rows": Rows(sequence, None, None)}
    if mask is not None and sequence is None:
        return {"attention_mask": mask}
    # Of four dimensions, so that transformers makes none of its own, of [L, L]; nobody looks at it.
    unseen = torch.zeros(1, 1, 1, 1, dtype=dtype, device=batch.input_ids.device)
    return {"attention_mask": unseen, "rows": Rows(sequence, mask, RowBlocks(batch, dtype) if mask is None else None)}


def check_used(given: dict[str, Any]) -> None:
    """Raises: ConfigError: the model was called with rows and its attention never saw them."""
    rows = given.get("rows")
    if rows is not None and not rows.used:
        raise ConfigError(
            "this model's attention does not go through the attention interface of transformers, so it knows no row "
            "borders; set model.attention = 'eager' and trainer.sequence_parallel = 1"
        )


@dataclass(frozen=True, slots=True)
class _RowAttention:
    """An attention function of transformers: of [R, heads, L, d] each, to [R, L, heads, d]."""

    attend: Callable[[nn.Module, Rows, States, list[int], dict[str, Any]], Tensor]
    """To [R, heads, L, d], given the key head of each query head."""
    original: Callable[..., tuple[Tensor, Any]]

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        rows: Rows | None = None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        if rows is None:
            return self.original(module, query, key, value, attention_mask, **options)
        rows.used = True
        changed = [name for name in SCORE_CHANGES if options.get(name) is not None]
        if changed:
            raise ConfigError(f"this model's attention has a {changed[0]}, which needs model.attention = 'eager'")
        states = query, key, value
        if rows.sequence is None:
            found = self.attend(module, rows, states, _key_heads(query, key), options)
        else:
            found = self._swapped(module, rows, rows.sequence, states, options)
        return found.transpose(1, 2).contiguous(), None

    def _swapped(
        self, module: nn.Module, rows: Rows, sequence: SequenceGroup, states: States, options: dict[str, Any]
    ) -> Tensor:
        """With this rank's heads over all columns, instead of all heads over this rank's columns."""
        query, key, value = states
        repeats = query.shape[1] // key.shape[1]
        queries = query_ranges(query.shape[1], sequence.size)
        keys = key_ranges(queries, repeats)
        first, last = queries[sequence.index]
        mine = sequence.to_heads(query, queries), sequence.to_heads(key, keys), sequence.to_heads(value, keys)
        key_heads = [head // repeats - first // repeats for head in range(first, last)]
        return sequence.to_columns(self.attend(module, rows, mine, key_heads, options), queries)


def _key_heads(query: Tensor, key: Tensor) -> list[int]:
    """The key head of each query head."""
    repeats = query.shape[1] // key.shape[1]
    return [head // repeats for head in range(query.shape[1])]


def _by_products(
    _module: nn.Module, rows: Rows, states: States, key_heads: list[int], options: dict[str, Any]
) -> Tensor:
    """With torch's own attention."""
    query, key, value = states
    key, value = (_for_each_query(x, key_heads) for x in (key, value))
    scaling = options.get("scaling")
    if rows.blocks is not None:
        return rows.blocks.attend((query, key, value), scaling)
    return scaled_dot_product_attention(query, key, value, attn_mask=rows.mask, scale=scaling)


def _by_flash(
    through: Callable[..., tuple[Tensor, Any]],
    module: nn.Module,
    _rows: Rows,
    states: States,
    key_heads: list[int],
    options: dict[str, Any],
) -> Tensor:
    """`through` transformers, which finds the kernel; `options` has the borders of the sequences."""
    query, key, value = states
    if key_heads != _key_heads(query, key):  # the kernel wants as many query heads for each key head
        key, value = (_for_each_query(x, key_heads) for x in (key, value))
    of_all_columns = {name: option for name, option in options.items() if name != "position_ids"}
    found, _ = through(module, query, key, value, None, **of_all_columns)
    return found.transpose(1, 2)


def _for_each_query(states: Tensor, key_heads: list[int]) -> Tensor:
    """[R, key heads, L, d] → [R, query heads, L, d]."""
    if len(key_heads) == states.shape[1]:
        return states
    return states.index_select(1, torch.tensor(key_heads, device=states.device))
