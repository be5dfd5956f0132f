"""The decoder's forward pass over new tokens of many rows at once, against the key-value cache.

Numerically the model of transformers (`LlamaForCausalLM`, `Qwen2ForCausalLM`) without what generation does not need:
fused products, no gradient, keys and values written where they stay, and logits only where somebody asks for them.

Shape letters: T new tokens of all chunks, R rows of a chunk, M new tokens a row, H key-value heads, G query heads a
key-value head, D head width, K cached tokens read, E hidden size, L layers, C capacity.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from services.engine.architecture import Architecture
from services.engine.weights import Layer, Weights


@dataclass
class Chunk:
    """M new tokens for each of R neighbouring rows of an arena.

    `ids` is (R, M), `starts` (R) and `kv`, the rows' keys and values, (L, 2, R, H, C, D). Row r's tokens take the
    positions from starts[r] on. Rows with fewer than M tokens are padded at the end: the padding's keys and values
    lie past the row's length, where nothing reads before they are replaced.
    """

    ids: torch.Tensor
    starts: torch.Tensor
    kv: torch.Tensor


class _Plan:
    """What the layers of one forward pass need to know about a chunk, worked out once."""

    def __init__(self, chunk: Chunk, first_token: int) -> None:
        self.kv = chunk.kv
        rows, self.new = chunk.ids.shape
        self.rows = rows
        self.tokens = slice(first_token, first_token + rows * self.new)
        heads, capacity = chunk.kv.shape[3:5]
        self.positions_RM = chunk.starts[:, None] + torch.arange(self.new)
        # One query token reads the row in full, several read as far as the longest row goes.
        self.read = capacity if self.new == 1 else min(int(chunk.starts.max()) + self.new, capacity)
        self.causal = self.new > 1 and self.read == self.new
        slots_RM = self.positions_RM.clamp(max=capacity - 1)
        row_heads_RH1 = torch.arange(rows * heads).view(rows, heads, 1)
        self.slots = (row_heads_RH1 * capacity + slots_RM[:, None, :]).flatten()
        self.hidden_RMK = torch.arange(self.read) > self.positions_RM[:, :, None]


class Model:
    """Computes hidden states and logits of new tokens, in the dtype of the weights."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        self.architecture = architecture
        self.weights = weights
        exponents = torch.arange(0, architecture.head_dim, 2, dtype=torch.float32) / architecture.head_dim
        self._inverse_frequencies = 1.0 / (architecture.rope_theta**exponents)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Hidden states (T, E) of all new tokens, chunk by chunk and row by row; fills the chunks' cache rows."""
        plans: list[_Plan] = []
        for chunk in chunks:
            plans.append(_Plan(chunk, plans[-1].tokens.stop if plans else 0))
        rope = self._rope(torch.cat([plan.positions_RM.flatten() for plan in plans]))
        hidden_TE = functional.embedding(torch.cat([chunk.ids.flatten() for chunk in chunks]), self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            hidden_TE = hidden_TE + self._attention(index, layer, hidden_TE, rope, plans)
            gate_T, up_T = layer.gate_up(self._norm(hidden_TE, layer.post_norm)).chunk(2, dim=-1)
            hidden_TE = hidden_TE + layer.down(functional.silu(gate_T) * up_T)
        return hidden_TE

    @torch.inference_mode()
    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """Logits (N, vocabulary) of chosen hidden states, in the dtype of the weights."""
        return self.weights.head(self._norm(hidden_NE, self.weights.final_norm))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.architecture.rms_norm_eps)

    def _rope(self, positions_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines, and sines signed for a rotation by `roll`, both (T, 1, D) in the dtype of the weights."""
        angles = positions_T[:, None].float() * self._inverse_frequencies
        sines = angles.sin()
        cosines_TD = torch.cat([angles.cos()] * 2, dim=-1).to(self.weights.dtype)
        return cosines_TD[:, None], torch.cat([-sines, sines], dim=-1).to(self.weights.dtype)[:, None]

    def _attention(
        self,
        index: int,
        layer: Layer,
        hidden_TE: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        plans: Sequence[_Plan],
    ) -> torch.Tensor:
        a = self.architecture
        qkv = layer.qkv(self._norm(hidden_TE, layer.input_norm)).view(len(hidden_TE), -1, a.head_dim)
        qk, value_THD = torch.split(qkv, [a.num_heads + a.num_kv_heads, a.num_kv_heads], dim=1)
        cosines, sines = rope
        qk = (qk * cosines).addcmul_(qk.roll(a.head_dim // 2, dims=-1), sines)
        query, key_THD = torch.split(qk, [a.num_heads, a.num_kv_heads], dim=1)
        outputs = []
        for plan in plans:
            kv_2RHCD = plan.kv[index]
            for stored_RHCD, fresh_THD in zip(kv_2RHCD, (key_THD, value_THD), strict=True):
                fresh = fresh_THD[plan.tokens].view(plan.rows, plan.new, a.num_kv_heads, a.head_dim).transpose(1, 2)
                stored_RHCD.view(-1, a.head_dim).index_copy_(0, plan.slots, fresh.reshape(-1, a.head_dim))
            attend = _attend_one if plan.new == 1 else _attend_many
            outputs.append(attend(query[plan.tokens], kv_2RHCD, plan))
        return layer.output(torch.cat(outputs) if len(outputs) > 1 else outputs[0])


def _attend_one(query: torch.Tensor, kv_2RHCD: torch.Tensor, plan: _Plan) -> torch.Tensor:
    """One query token a row: two batched products over (row, key-value head), several times faster than the general
    kernel because the G query heads of a key-value head share its keys and values without a copy. Rows are read in
    their full capacity, since a product over part of each would copy that part first."""
    rows, heads, capacity, width = kv_2RHCD.shape[1:]
    keys, values = kv_2RHCD.view(2, rows * heads, capacity, width)
    scores = torch.bmm(query.reshape(rows * heads, -1, width), keys.transpose(1, 2)).float().mul_(width**-0.5)
    scores.view(rows, -1, capacity).masked_fill_(plan.hidden_RMK, -torch.inf)
    return torch.bmm(scores.softmax(dim=-1).to(values.dtype), values).view(rows, -1)


def _attend_many(query: torch.Tensor, kv_2RHCD: torch.Tensor, plan: _Plan) -> torch.Tensor:
    """Several query tokens a row (a prompt, or tokens replayed under new weights)."""
    rows, heads, _, width = kv_2RHCD.shape[1:]
    query_RMSD = query.reshape(rows, plan.new, -1, width)
    num_heads = query_RMSD.shape[2]
    keys, values = kv_2RHCD[:, :, :, : plan.read].repeat_interleave(num_heads // heads, dim=2)
    visible = None if plan.causal else ~plan.hidden_RMK[:, None]
    mixed = functional.scaled_dot_product_attention(
        query_RMSD.transpose(1, 2), keys, values, attn_mask=visible, is_causal=plan.causal
    )
    return mixed.transpose(1, 2).reshape(rows * plan.new, -1)
