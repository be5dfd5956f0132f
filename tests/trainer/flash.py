"""Flash-attention's kernel, written out for a CPU: what transformers passes to it, and what it would answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import modeling_flash_attention_utils as utils


class Kernel:
    """`flash_attn_varlen_func` with plain loops; keeps the arguments of each call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def varlen(  # noqa: PLR0913, PLR0917  # the kernel's
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        """[tokens, heads, d] each, of sequences one after another."""
        assert q.shape[1] % k.shape[1] == 0  # as the kernel demands
        assert causal and not dropout_p and torch.equal(cu_seqlens_q, cu_seqlens_k) and max_seqlen_q == max_seqlen_k
        self.calls.append({"heads": (q.shape[1], k.shape[1]), "borders": cu_seqlens_q, "longest": max_seqlen_q})
        repeats = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        found = []
        for start, end in pairwise(cu_seqlens_q.tolist()):
            query, key, value = (x[start:end].transpose(0, 1) for x in (q, k, v))
            attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=softmax_scale)
            found.append(attended.transpose(0, 1))
        return torch.cat(found)


@contextmanager
def flash_attention(body: Any) -> Iterator[Kernel]:
    """The body of a model computes as if it had been loaded with flash-attention on a machine that has it."""
    kernel = Kernel()
    process: Any = utils._lazy_define_process_function(kernel.varlen)  # type: ignore[no-untyped-call]
    loaded = (None, kernel.varlen, None, None, None), (process, None)
    before = body.config._attn_implementation
    with patch.object(utils, "lazy_import_flash_attention", lambda _name: loaded):
        body.config._attn_implementation = "flash_attention_2"
        try:
            yield kernel
        finally:
            body.config._attn_implementation = before


def attentions(body: nn.Module) -> int:
    """Layers with attention."""
    return sum(name.endswith("self_attn") for name, _ in body.named_modules())
